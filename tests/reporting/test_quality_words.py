"""The text of a report on quality: signs of losses, names of settings, uninformative tasks."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import statetrim as st
from helpers.measured import ROWS, agreements, model, point, scores, shape_scores
from statetrim.judging.recommendation import recommend
from statetrim.reporting.findings import read_findings
from statetrim.reporting.report import build_document


def make_scores(recall: dict[str, dict[int, float]], count: int = ROWS) -> st.Scores:
    """Scores of models, each worse than the one before; `recall`: model -> pairs -> accuracy."""
    models = {}
    for number, (name, by_pairs) in enumerate(recall.items()):
        samples = model(by_pairs, 3.0 + 0.2 * number)
        del samples["text", "kl"]
        samples["fda", "contains"] = [
            float(row < (0.9 - 0.2 * number) * count) for row in range(ROWS)
        ]
        models[name] = {key: values[:count] for key, values in samples.items()}
    return scores(models)


@pytest.fixture(scope="module")
def cut(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with the name that the scores have."""
    model = st.open(checkpoint("qwen3_5_text"))
    out = tmp_path_factory.mktemp("made") / "cut"
    return st.prune(model, st.select(model, "rand", to="6x100%"), out).path


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


@pytest.mark.parametrize(("rows", "expected_text"), [
    (6, "6 samples of mqar are too few to tell the original from chance"),
    (64, "the original is less than 5 points above chance on 64 samples of mqar"),
])  # fmt: skip
def test_chance_is_no_certainty(rows: int, expected_text: str, cut: Path, tmp_path: Path) -> None:
    """With four pairs chance is 25 %; six sequences cannot show that 31 % is above it."""
    recall = {4: 0.31} if rows < ROWS else {4: 0.25}
    model_scores = make_scores({"whole": recall, "cut": recall, "rand": recall}, rows)
    text = report_text(cut, model_scores, tmp_path)
    assert f"not informative: {expected_text} |" in text
    assert "at chance" not in text


def test_recovery_is_named_for_what_it_may_restore(cut: Path, tmp_path: Path) -> None:
    def answer(lost: float) -> str:
        right, worse = {4: 0.9}, {4: 0.9 - lost}
        model_scores = make_scores({"whole": right, "cut": worse, "rand": {4: 0.2}})
        mqar_scores = [x for x in model_scores.scores if x.task == "mqar"]
        st.Scores(model_scores.models, mqar_scores).save(tmp_path / "scores.json")
        findings = read_findings(st.open(cut), [tmp_path / "scores.json"])
        return build_document(findings).summary.answer

    assert answer(0.06) == "Ship after recovery" and answer(0.5) == "Do not ship"
