"""The report shows what the artifacts hold, and executes nothing that they contain."""

import json
import re
import shutil
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.tiny import Load
from statetrim.artifacts.decision import MeasuredShape
from statetrim.artifacts.plan import PLAN_FILE, AxisPlan
from statetrim.cut.shape import Shape
from statetrim.reporting.charts import Point, Series, interval_chart, line_chart
from statetrim.reporting.figures import inline_svg
from statetrim.reporting.findings import read_findings
from statetrim.reporting.report import build_document, render_markdown

HOSTILE_TEXT = (
    "</style><script>alert(1)</script><img src=http://x.test/a.png onerror=alert(1)>|`$x`\n# a"
)
VOID = {"meta", "img"}
ACTIVE = {
    "script", "link", "iframe", "object", "embed", "form", "base", "video", "use", "image", "img",
}  # fmt: skip
FILES = ("analysis.json", "scores.json", "decision.json", "timings.json", "recover.json",
         "refit.json", "trim.json")  # fmt: skip


class Page(HTMLParser):
    """Parses a page: its opening tags, the stack of open ones, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def artifacts(checkpoint: Load, tmp_path_factory: Any) -> Path:
    """A directory with a model, its cut and all kinds of artifacts."""
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(checkpoint("qwen3_5_text"), folder / "MODEL")
    tiny.write_text(folder / "text.jsonl", 2**12)
    model = st.open(folder / "MODEL")
    small = st.prune(model, st.select(model, "rand", to="6x100%"), folder / "SMALL")
    spans: Any = {"tokens": 256, "length": 128, "burn_in": 64}
    analysis = st.analyze(small, folder / "text.jsonl", baseline=model, **spans)
    analysis.save(folder / "analysis.json")
    write_scores(folder / "scores.json")
    points = [MeasuredShape(Shape(12, 8), "none", 12 * 2**20)]
    for keep in (4, 6, 8):
        points.append(MeasuredShape(Shape(keep, 8), "drrqr", keep * 2**20))
        write_scores(folder / f"scores-{keep}x8.json")
    files = {str(point): f"scores-{point}.json" for point in points[1:]}
    st.Decision("MODEL", points, "8x8", files=files).save(folder / "decision.json")
    write_records(folder, "MODEL")
    return folder


def write_records(folder: Path, text: str) -> list[Path]:
    """Write records as benchmark, recover, refit and trim do, with `text` in every text field."""
    timing = {"model": text, "metric": text, "batch": 1, "length": None, "value": 2.5, "unit": text}
    timing |= {"spread": None, "ratio": 0.7, "ratio_spread": None}
    original_timing = timing | {"model": "whole", "value": 5.0, "ratio": None}
    largest = timing | {"value": 9e299, "ratio": -9e299}
    timings = [original_timing, timing, largest]
    curve = [{"step": n, "loss": 2.0 - n, "ce": 1.0, "kl": 1.0} for n in (0, 1)]
    records = {
        "timings": {"models": ["whole", text], "records": timings, "lineage": {"x": text}},
        "recover": {"options": {text: text}, "curve": [*curve, {"step": 10}]},
        "refit": {"layers": {"0": {"before": 0.5, "after": 0.25, text: 0.5}, text: {text: 1}}},
        "trim": {"warnings": [text], "checks": {"sliced_against_masked": 1e-7, text: text}},
    }
    for name, record in records.items():
        kind = {"format": f"statetrim {name}", "version": 1, "statetrim": text}
        tiny.edit_json(folder / f"{name}.json", **kind, **record)
    return [folder / f"{name}.json" for name in records]


def write_scores(path: Path, name: str = "SMALL", task: str = "mqar") -> None:
    fields = {"task": task, "metric": "accuracy", "unit": "share", "higher_is_better": True}
    records = [
        {"model": model, **fields, "samples": samples, "weights": None}
        for model, samples in (("MODEL", [1.0] * 8), (name, [1.0, 0.0] * 4))
    ]
    kind: Any = {"format": "statetrim scores", "version": 1}
    tiny.edit_json(path, **kind, models=["MODEL", name], scores=records)


@pytest.fixture(scope="module")
def full(artifacts: Path, tmp_path_factory: Any) -> Path:
    return report_all(artifacts, tmp_path_factory.mktemp("out") / "report")


def report_all(artifacts: Path, out: Path) -> Path:
    files = [artifacts / name for name in FILES]
    return st.report(artifacts / "SMALL", files, out=out, baseline=artifacts / "MODEL")


def check_page(html: str) -> Page:
    """Check what must hold for every report, also of untrusted artifacts."""
    page = Page(html)
    assert not page.open
    assert ACTIVE.isdisjoint(tag for tag, _ in page.tags)
    identifiers = [a["id"] for _, a in page.tags if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
        for name in ("src", "href", "data", "action", "xlink:href"):
            value = attributes.get(name)
            if value is not None:
                assert value.startswith("#"), value
        if tag == "svg":
            assert attributes["role"] == "img" and attributes["aria-label"]
    assert "url(" not in html and "@import" not in html
    assert len(html.encode()) < 2_000_000
    return page


def test_the_page_needs_nothing_else(full: Path) -> None:
    page = check_page(full.read_text())
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")
    assert sum(tag == "svg" for tag, _ in page.tags) == 2, "with every picture"
    headings = [a["id"] for t, a in page.tags if t == "h2"]
    assert headings == [
        "answer", "quality", "why-this-shape", "memory-before-and-after",
        "where-it-runs", "speed", "what-was-cut", "effective-rank-of-the-state", "recovery",
        "how-to-reproduce-it",
    ]  # fmt: skip


def test_figures_are_those_of_the_artifacts(full: Path, artifacts: Path) -> None:
    before, after = st.open(artifacts / "MODEL"), st.open(artifacts / "SMALL")
    text = Page(full.read_text()).text
    for model in (before, after):
        assert f"{model.geometry.state_numel * 4 / 1024:,.1f} KiB" in text
        assert f"{model.parameters:,}" in text
    assert "100.0% → 50.0%" in text
    assert "loss of 50.00" in text
    assert "2.5 (0.50x)" in text
    assert "Warning: MODEL." in text and "1.0e-07" in text
    assert "50.0 ±44.7" in text  # a shape of the decision: 2.365 * 53.45 / sqrt(8)


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, 0.0, 3.0])
def test_charts_stand_any_number(value: float) -> None:
    for log_x in (False, True):
        points = [Point(value, value), Point(1.0, 1e-12)]
        chart = line_chart([Series("a", points)], "t", x="x", y="y", log_x=log_x)
        assert chart is not None
        assert "nan" not in inline_svg(chart) and "inf" not in inline_svg(chart)
    interval = interval_chart([("a", value, value, value)], "t", "x")
    assert interval is None or "nan" not in inline_svg(interval)


def test_a_chart_shows_its_points_in_the_colours_of_the_page() -> None:
    """Positions in the SVG are an affine map of the numbers."""
    points = [Point(1.0, 5.0), Point(2.0, 1.0), Point(4.0, 3.0)]
    chart = line_chart([Series("<a & $b$>", points)], "title", x="x", y="y")
    assert chart is not None
    drawn_once = inline_svg(chart)
    assert inline_svg(chart) == drawn_once, "equal charts give equal bytes"
    root = ElementTree.fromstring(drawn_once)
    paths = [element for element in root.iter() if element.tag.endswith("path")]
    line = next(
        p for p in paths if p.get("stroke") == "var(--series-0)" and p.get("fill") == "none"
    )
    drawn = np.array(re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", line.attrib["d"]), float)
    for column, numbers in enumerate(([1.0, 2.0, 4.0], [5.0, 1.0, 3.0])):
        slope = (drawn[1] - drawn[0])[column] / (numbers[1] - numbers[0])
        expected = drawn[0, column] + slope * (np.array(numbers) - numbers[0])
        assert drawn[:, column] == pytest.approx(expected, abs=1e-3)
    legend = line_chart([Series("<a & $b$>", points), Series("c", points)], "t", x="x", y="y")
    assert legend is not None and "&lt;a &amp; $b$&gt;" in inline_svg(legend)


def test_without_matplotlib_the_tables_stand_alone(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = report_all(artifacts, tmp_path / "report").read_text()
    assert "<svg" not in page and "<img" not in page and page.count("<table>") > 8


def hostile_report(artifacts: Path, folder: Path) -> Path:
    """The report of artifacts with markup and scripts in every text field."""
    shutil.copytree(artifacts / "SMALL", folder / "SMALL")
    plan = json.loads((folder / "SMALL" / PLAN_FILE).read_text())
    plan["axes"]["key"] |= {"method": HOSTILE_TEXT, "options": {HOSTILE_TEXT: "x"}}
    data = {"text": HOSTILE_TEXT, "count": 1, "length": 2, "skip": 0}
    plan["lineage"] |= {"statetrim": HOSTILE_TEXT, "source": HOSTILE_TEXT}
    plan["lineage"] |= {"statistics": {"data": [data]}}
    (folder / "SMALL" / PLAN_FILE).write_text(json.dumps(plan))
    write_scores(folder / "scores.json", name=HOSTILE_TEXT, task=HOSTILE_TEXT)
    point = {"shape": [1, 1], "method": HOSTILE_TEXT, "state_bytes": 10}
    original = point | {"method": "none", "shape": [2, 1]}
    decision = {"format": "statetrim decision", "version": 1, "points": [original, point]}
    decision |= {"model": HOSTILE_TEXT, "files": {"1x1": "scores.json"}}
    tiny.edit_json(folder / "decision.json", **decision)
    write_records(folder, HOSTILE_TEXT)
    return st.report(folder / "SMALL", sorted(folder.glob("*.json")), out=folder / "out")


def test_nothing_in_an_artifact_acts(artifacts: Path, tmp_path: Path) -> None:
    page = hostile_report(artifacts, tmp_path)
    html = page.read_text()
    check_page(html)
    assert "alert(1)" in html  # shown as text
    for line in page.with_suffix(".md").read_text().splitlines():
        if "alert(1)" in line and not line.startswith("    "):  # code blocks are inert
            assert not re.search(r"(?<!\\)[<>`]", line.removeprefix("> ")), line
            assert not line.startswith("# a")


@pytest.mark.parametrize(("kind", "change", "message"), load_cases("spoiled"))
def test_spoiled_artifacts_end_in_a_sentence(
    kind: str, change: dict[str, Any], message: str, artifacts: Path, tmp_path: Path
) -> None:
    if kind == "scores":
        write_scores(tmp_path / "record.json")
    header = {"format": f"statetrim {kind}", "version": 1}
    tiny.edit_json(tmp_path / "record.json", **header | change)
    with pytest.raises(st.StatetrimError, match=message):
        st.report(artifacts / "SMALL", [tmp_path / "record.json"], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def markdown(cut: Path, *files: Path, original: Path | None = None) -> str:
    """The text of a report."""
    opened = st.open(original) if original else None
    return render_markdown(build_document(read_findings(st.open(cut), files, opened)))


def test_what_does_not_belong_together_is_said(artifacts: Path, tmp_path: Path) -> None:
    with pytest.raises(st.StatetrimError, match="a report is of a cut"):
        markdown(artifacts / "MODEL")
    with pytest.raises(st.StatetrimError, match="are both scores; give one"):
        markdown(artifacts / "SMALL", artifacts / "scores.json", artifacts / "scores.json")
    shutil.copytree(artifacts / "MODEL", tmp_path / "OTHER")
    tiny.edit_json(tmp_path / "OTHER" / "config.json", rope_theta=1.0)
    for name, belongs in ((artifacts / "MODEL", True), (tmp_path / "OTHER", False)):
        text = markdown(artifacts / "SMALL", original=name)
        assert ("the plan was not made for OTHER" not in text) is belongs


def test_scores_of_other_weights_are_told_apart(artifacts: Path, tmp_path: Path) -> None:
    """A recovery copies the scores of the weights before it."""
    shutil.copytree(artifacts / "SMALL", tmp_path / "SMALL")
    small = st.open(tmp_path / "SMALL")
    content = json.loads((artifacts / "scores.json").read_text())
    inner = tmp_path / "SMALL" / "statetrim" / "scores.json"
    for scored, is_other in (([small.digest], False), (["0" * 64], True)):
        inner.write_text(json.dumps(content | {"lineage": {"models": scored}}))
        without_file = markdown(tmp_path / "SMALL")
        assert ("Quality was not measured" in without_file) is is_other  # left out when not its own
        shutil.copy(inner, tmp_path / "scores.json")
        with_file = markdown(tmp_path / "SMALL", tmp_path / "scores.json")
        assert ("scores are of other weights" in with_file) is is_other  # shown, with a warning


def test_an_analysis_of_the_original_belongs_to_a_report_of_the_cut(
    artifacts: Path, tmp_path: Path
) -> None:
    """As in the demo; that of a third model does not."""
    analysis, original = st.Analysis.load(artifacts / "analysis.json"), st.open(artifacts / "MODEL")
    for source, belongs in ((original.digest, True), ("0" * 64, False)):
        lineage = {**analysis.lineage, "source": source}
        replace(analysis, lineage=lineage, baseline=None).save(tmp_path / "analysis.json")
        page = markdown(
            artifacts / "SMALL", tmp_path / "analysis.json", original=artifacts / "MODEL"
        )
        assert ("the analysis is of other weights" not in page) is belongs
        assert ("Mean use: the original" in page) is belongs


def test_values_alone(artifacts: Path, tmp_path: Path) -> None:
    model = st.open(artifacts / "MODEL")
    plan = st.select(model, to="100%x4", method="rand", seed=3)
    cut = st.prune(model, plan, tmp_path / "cut")
    page = st.report(cut, out=tmp_path / "out", baseline=model)
    html = page.read_text()
    check_page(html)
    assert "channels of a value head" in html and "rand" in html


def test_a_link_out_of_the_checkpoint_is_not_read(artifacts: Path, tmp_path: Path) -> None:
    shutil.copytree(artifacts / "SMALL", tmp_path / "SMALL")
    record = tmp_path / "SMALL" / "statetrim" / "prune.json"
    record.rename(tmp_path / "elsewhere.json")
    record.symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(st.StatetrimError, match="leads out"):
        markdown(tmp_path / "SMALL")


def test_a_large_plan_still_fits_in_two_megabytes(artifacts: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    kept = {
        layer: torch.rand(64, 256, generator=generator).argsort(1)[:, :128].sort(1).values
        for layer in range(96)
    }
    shutil.copytree(artifacts / "SMALL", tmp_path / "SMALL")
    plan = st.Plan({"key": AxisPlan(kept, "rand")}, lineage={"source": "x"})
    plan.save(tmp_path / "SMALL" / PLAN_FILE)
    page = st.report(tmp_path / "SMALL", out=tmp_path / "out")
    check_page(page.read_text())


def test_in_a_browser(full: Path, artifacts: Path, tmp_path: Path, screenshots: Any) -> None:
    """On phone and desktop, light and dark: no request, overflow or serious axe-core violation."""
    hostile_page = hostile_report(artifacts, tmp_path)
    with screenshots.browser() as browser:
        assert list(screenshots.faults(browser, full, None)) == []
        assert list(screenshots.faults(browser, hostile_page, None)) == []
