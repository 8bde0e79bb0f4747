"""The first screen of a report: answer, reason, facts, and commands that run as printed."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from helpers.measured import agreements, point, shape_scores
from helpers.refusal import run
from helpers.tiny import Load
from statetrim.reporting.document import Document, Table
from statetrim.reporting.findings import read_findings
from statetrim.reporting.report import build_document

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


@pytest.fixture(scope="module")
def folder(checkpoint: Load, tmp_path_factory: Any) -> Path:
    """A directory with a model, a text and a cut OUT."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "my model").symlink_to(checkpoint("qwen3_5_text"))
    tiny.write_text(folder / "text.jsonl", 2**16)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        quick: dict[str, Any] = {"text": "text.jsonl", "tokens": 2048, "length": 64}
        quick |= {"benchmark": False}
        st.trim("my model", to="6x100%", out="OUT", limit=8, **quick)
    return folder


def document_of(folder: Path, *names: str) -> Document:
    """The report of OUT, with the files of these names."""
    original, cut = st.open(folder / "my model"), st.open(folder / "OUT")
    return build_document(read_findings(cut, [folder / name for name in names], original))


def test_the_answer_is_the_rule_s_and_stands_first(folder: Path) -> None:
    """A random model is at chance on recall, so the verdict lacks evidence."""
    page = (folder / "OUT" / "statetrim" / "report" / "report.html").read_text()
    body = page[page.index("<body>") :]
    answer = re.search(
        r'class="answer (\w+)".*?<h2 id="answer">(.*?)</h2>\s*<p>(.*?)</p>', body, re.S
    )
    assert answer and answer[1] == "unknown" and answer[2] == "Not enough evidence"
    assert body.index('class="answer') < body.index("<dl") < body.index("<nav")
    card = (folder / "OUT" / "README.md").read_text()
    assert "**Not enough evidence**: " in card
    reason = answer[3].rstrip(".").lower()
    assert reason in card.lower()
    code, err, out = run(["evaluate", str(folder / "OUT"), "--baseline", str(folder / "my model"),
                          "--tasks", "mqar", "--limit", "4", "--fail-if", "not ship",
                          "-o", str(folder / "again.json")])  # fmt: skip
    assert code == 1 and "not enough evidence" in err.splitlines()[-1]
    assert "OUT: NOT ENOUGH EVIDENCE" in out


def test_memory_is_compared_with_what_is_free(folder: Path) -> None:
    before, after = st.open(folder / "my model").geometry, st.open(folder / "OUT").geometry
    sizes = [f"{numel * width / 1024:,.1f} KiB"
             for numel in (before.state_numel, after.state_numel) for width in (4, 2)]  # fmt: skip
    document = document_of(folder)
    (memory,) = (fact for fact in document.summary.facts if fact.name == "Memory")
    *_, states = memory.lines
    float32, bfloat16 = f"{sizes[0]} → {sizes[2]}", f"{sizes[1]} → {sizes[3]}"
    assert states.startswith(f"state per sequence: {float32} in float32, {bfloat16} in bfloat16")
    card = (folder / "OUT" / "README.md").read_text()
    assert all(size in card for size in sizes)
    findings = read_findings(st.open(folder / "OUT"), original=st.open(folder / "my model"))
    assert findings.trim and findings.trim.recipe
    findings.trim.recipe["for_"] = "mlx"
    (memory,) = (f for f in build_document(findings).summary.facts if f.name == "Memory")
    assert "bfloat16" not in " ".join(memory.lines), "MLX-LM has no such state"


def test_sections_without_an_artifact_are_one_line(folder: Path) -> None:
    document = document_of(folder)
    absent = [section.title for section in document.absent]
    assert absent == ["Why this shape", "Speed", "Stored copies", "Which layer carries what",
                      "What each layer remembers",
                      "Effective rank of the state", "Recovery"]  # fmt: skip
    page = (folder / "OUT" / "statetrim" / "report" / "report.html").read_text()
    (line,) = re.findall(r"<summary>Not in this report: (.*?)</summary>", page)
    assert line == " · ".join(absent)
    assert not set(absent) & set(re.findall(r"<h2 id=.*?>(.*?)</h2>", page))


def save_verification(folder: Path, engine: str, **fields: Any) -> Path:
    fingerprints = [st.open(folder / name).digest for name in ("my model", "OUT")]
    agreed = {"my model": 50, "OUT": 49}
    for name in fields.get("refusals", {}):
        del agreed[name]
    verification = st.Verification(
        engine, f"{engine} 1.0", "float32", ["my model", "OUT"], agreements(**agreed),
        lineage={"models": fingerprints}, **fields,
    )  # fmt: skip
    verification.save(folder / f"{engine}.json")
    return folder / f"{engine}.json"


def test_a_fault_found_in_an_engine_is_the_answer(folder: Path) -> None:
    passing = save_verification(folder, "mlx")
    faulty = save_verification(folder, "llamacpp", faults={"OUT": ["llama.cpp answers <nonsense>"]})
    refusal = {"OUT": "vLLM does not run it: odd width"}
    refused = save_verification(folder, "vllm", refusals=refusal, faults={"OUT": [refusal["OUT"]]})

    def answer(*files: Path) -> tuple[str, str]:
        summary = document_of(folder, *(file.name for file in files)).summary
        return summary.answer, summary.reason

    assert answer(passing)[0] == "Not enough evidence"
    assert answer(passing, faulty) == ("Do not ship", "llama.cpp answers <nonsense>")
    assert answer(refused) == ("Do not ship", refusal["OUT"])
    assert answer(passing, refused)[0] == "Not enough evidence"  # MLX-LM runs it
    both = {"my model": "no memory", **refusal}
    both_refused = save_verification(folder, "vllm", refusals=both, faults={"OUT": ["odd width"]})
    assert answer(both_refused)[0] == "Not enough evidence", "the cut is not at fault"
    st.report(folder / "OUT", [passing, faulty], out=folder / "verified")
    page = (folder / "verified" / "report.html").read_text()
    assert "98 of 100" in page and "+2.00 (+2.00 to +2.00)" in page
    assert "llama.cpp answers &lt;nonsense&gt;" in page


QUICK = {
    "trim": ["--length", "64", "--limit", "2", "--no-control"],
    "recover": ["--tokens", "1k", "--length", "64", "--batch-size", "4"],
    "evaluate": ["--limit", "2"],
    "analyze": ["--tokens", "1k", "--length", "512", "--widths", "0.5"],
    "benchmark": ["--rounds", "1", "--batch-sizes", "1", "--lengths", "16"],
}
"""Options added to the printed commands, whose defaults suit real models."""


@pytest.mark.usefixtures("quick_sensitivity")
def test_commands_work_as_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run them in the directory of the report; the model's name contains a space."""
    monkeypatch.chdir(folder)
    text = (folder / "OUT" / "statetrim" / "report" / "report.md").read_text()
    commands = re.findall(r"^ +(statetrim .*)$", text, re.M)
    names = {shlex.split(command)[1] for command in commands}
    assert names >= {"trim", "recipe", "evaluate", "analyze", "benchmark", "recover"}
    assert not re.search(r"MODEL|TEXT|(?<!-o )SMALL", "\n".join(commands)), commands
    for command in commands:
        name, *arguments = shlex.split(command.removesuffix(" > recipe.yaml"))[1:]
        code, err, printed = run([name, *arguments, *QUICK.get(name, [])])
        assert code is None, f"{command}\n{err}"
        if name == "recipe":
            Path("recipe.yaml").write_text(printed)
    check_same_weights(folder / "OUT", folder / "SMALL")


def check_same_weights(first: Path, second: Path) -> None:
    """Bit for bit."""
    names = sorted(path.name for path in first.glob("*.safetensors"))
    assert names and names == sorted(path.name for path in second.glob("*.safetensors"))
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_cut_by_hand_is_reproduced_by_its_plan(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = st.open(folder / "my model")
    cut = st.prune(model, st.select(model, "rand", to="6x100%"), "my cut")
    page = st.report(cut, out="page", baseline=model).with_suffix(".md").read_text()
    section = page.partition("## How to reproduce it")[2].partition("\n## ")[0]
    (command,) = re.findall(r"^ +(statetrim .*)$", section, re.M)
    assert run(shlex.split(command)[1:])[0] is None
    check_same_weights(cut.path, tmp_path / "SMALL")


def test_the_shapes_of_a_decision_are_judged(folder: Path, tmp_path: Path) -> None:
    """Shape, recall lost in points, perplexity gained in percent."""
    figures = [("48x64", 0.2, 0.3), ("64x48", 2.0, 2.0), ("64x32", 1.5, 1.0), ("32x64", 12.0, 2.0),
               ("32x32", 20.0, 5.0)]  # fmt: skip
    points, files = [point("64x64")], dict[str, str]()
    for shape, recall, perplexity in figures:
        points.append(point(shape))
        files[shape] = f"scores-{shape}.json"
        shape_scores(recall, perplexity).save(tmp_path / files[shape])
    st.Decision("tiny", points, files=files).save(tmp_path / "decision.json")
    sections = document_of(folder, str(tmp_path / "decision.json")).sections
    (section,) = (x for x in sections if x.title == "Why this shape")
    table = next(block for block in section.blocks if isinstance(block, Table))
    assert [row[0] for row in table.rows[1:]] == [
        "48x64: within limits", "64x48: unclear", "64x32: within limits", "32x64: loses too much",
        "32x32: loses too much",
    ]  # fmt: skip


WARNING = """<p class="note">Warning: recall falls by 31.0 points on mqar (95%: 26.2 to 35.8); keep
more channels, or calibrate and recover on text that needs recall.</p>"""


def test_the_fold(folder: Path, tmp_path: Path, screenshots: Any) -> None:
    """On phone and desktop the answer, its reason and all warnings show without scrolling."""
    page = folder / "OUT" / "statetrim" / "report" / "report.html"
    lost = page.read_text().replace('<dl class="facts">', f'{2 * WARNING}<dl class="facts">')
    (tmp_path / "lost.html").write_text(lost)
    (tmp_path / "low.html").write_text(lost.replace("<header>", "<header>" + "<p>x</p>" * 40))
    with screenshots.browser() as started:
        assert list(screenshots.faults(started, tmp_path / "lost.html", None)) == []
        low = list(screenshots.faults(started, tmp_path / "low.html", None))
        assert any("below the fold" in fault for fault in low), "or the check sees nothing"
