"""The text of a report on quality: signs of losses, names of settings. The example of a section in
CONTRIBUTING.md works as it is printed there."""

import re
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers.doc_pages import ROOT, code
from helpers.measured import ROWS, agreements, model, point, scores, shape_scores
from statetrim.judging.recommendation import recommend
from statetrim.reporting import sections


def make_scores(recall: dict[str, dict[int, float]]) -> st.Scores:
    """Scores of models, each worse than the one before; `recall`: model -> pairs -> accuracy."""
    models = {}
    for number, (name, by_pairs) in enumerate(recall.items()):
        samples = model(by_pairs, 3.0 + 0.2 * number)
        del samples["text", "kl"]
        samples["fda", "contains"] = [
            float(row < (0.9 - 0.2 * number) * ROWS) for row in range(ROWS)
        ]
        models[name] = samples
    return scores(models)


@pytest.fixture
def cut(pair: Any) -> Path:
    """A checkpoint with the name that the scores have."""
    path: Path = pair("qwen3_5_text", method="rand")[1].path
    return path


def report_text(cut: Path, model_scores: st.Scores, folder: Path, *more: Path) -> str:
    model_scores.save(folder / "scores.json")
    st.report(cut, [folder / "scores.json", *more], out=folder / "page")
    return (folder / "page" / "report.md").read_text()


def test_a_loss_is_positive_wherever_it_stands(cut: Path, tmp_path: Path) -> None:
    """In summary, tables, means, the choice of a shape, and the comparison of engines."""
    model_scores = make_scores(
        {"whole": {4: 0.95, 8: 0.9}, "cut": {4: 0.8, 8: 0.7}, "rand": {4: 0.3, 8: 0.2}}
    )
    points, compared = [point("64x64"), point("32x32")], {"32x32": shape_scores(16, 0, margin=2)}
    compared["32x32"].save(tmp_path / "compared.json")
    reason, named = recommend(points, compared).reason, {"32x32": "compared.json"}
    st.Decision("whole", points, "32x32", reason, files=named).save(tmp_path / "choice.json")
    agreed = agreements(whole=50, cut=49)
    verification = st.Verification("mlx", "mlx 1.0", "float32", ["whole", "cut"], agreed)
    verification.save(tmp_path / "run.json")
    files = tmp_path / "choice.json", tmp_path / "run.json"
    text = report_text(cut, model_scores, tmp_path, *files)
    shown = text[: text.index("## Not in this report")]
    assert "loss 17.5 points" in shown and "at 8 pairs 20.0 points" in shown
    assert "| rand | 64 | 92.4% | 24.9% | loss of 67.50 " in shown
    assert "recall falls by 16.0 points" in shown and "| 16.0 ±2.0 |" in shown
    assert "+2.00 (+2.00 to +2.00)" in shown
    assert not re.findall(r"(?<![\w.:-])-\d[\d.]*", shown), "no loss is negative"
    assert shown.count("a positive figure is a loss, a negative one a gain") == 1


def test_a_mean_names_its_settings_next_to_them(cut: Path, tmp_path: Path) -> None:
    lost = {4: 0.5, 8: 0.4, 16: 0.05}
    recall = {"whole": {4: 0.95, 8: 0.9, 16: 0.05}, "cut": lost, "rand": lost}
    text = report_text(cut, make_scores(recall), tmp_path)
    name = "mqar, accuracy (mean of 2 of 3 settings: 4 pairs, 8 pairs)"
    assert f"| {name} | cut | 64 | 92.4% | 44.9% |" in text
    assert "rand is a random cut" in text


def test_the_example_of_a_section_is_in_the_report(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (section_code,) = (x for x in code(ROOT / "CONTRIBUTING.md", "python") if "blocks(" in x)
    names: dict[str, Any] = {"__package__": sections.__name__}
    exec(section_code, names)
    monkeypatch.setitem(sections.SECTIONS, "Heads", names["blocks"])
    _, cut = pair("qwen3_5_text", method="rand")
    page = st.report(cut, out=tmp_path / "out").with_suffix(".md").read_text()
    section = page.partition("\n## Heads\n")[2].partition("\n## ")[0]
    rows = re.findall(r"\| (keys|values) \| (\d+) \|", section)
    heads = cut.geometry
    assert rows == [("keys", str(heads.num_k_heads)), ("values", str(heads.num_v_heads))]
