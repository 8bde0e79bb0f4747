"""What was measured, for people: the table of a decision, and the section of a model card."""

from collections.abc import Mapping, Sequence

from ..artifacts.card.markdown import escape, table_lines
from ..artifacts.card.model_card import with_measured_section
from ..artifacts.decision import Decision, MeasuredShape
from ..artifacts.scores import Scores
from ..maths.formatting import fit_text, list_text
from ..tasks.unit import UNITS
from .limits import LimitStatus
from .losses import Loss, averaged_settings_text, headline_score, task_losses
from .recommendation import JudgedCut, recommend
from .verdict import Verdict

HEADER = ("kept", "bytes", "sequences", "block", "missed", "perplexity", "recall")
"""Of a table that fits in 80 columns: what is kept and how it was judged, bytes of the original's,
tokens of a block, the predicted part of the layers' output that is missed, and losses."""
CAPTION = (
    "Bytes are those of the original's state. Prefixes shorter than a block, with drafts than two, "
    "are not cached. Missed is predicted: the part of the layers' output that is missed after a "
    "refit, over text and recall. Losses of perplexity are in percent, of recall in points, with "
    "95% intervals, on other text than in the final measurement"
)


def decision_rows(decision: Decision, scores: Mapping[str, Scores]) -> list[tuple[str, ...]]:
    """A row per point of the decision, by `HEADER`."""
    if not decision.points:
        return []
    original = decision.points[0]
    judged = {str(cut.point): cut for cut in recommend(decision.points, scores).cuts}
    rows: list[tuple[str, ...]] = []
    for point in decision.points:
        name = str(point)
        losses = _losses(scores.get(name))
        missed = decision.predicted.get(name)
        figures = (
            f"{point.state_bytes / original.state_bytes:.0%}",
            "" if point.sequences is None else fit_text(point.sequences),
            f"{point.block_size:,}" if point.block_size else "",
            "" if missed is None else f"{100 * missed:.1f}%",
            _loss_cell(losses.get("perplexity")),
            _loss_cell(losses.get("recall")),
        )
        judgement = _judgement(decision, point, judged.get(name))
        rows.append((f"{point.label}: {judgement}" if judgement else point.label, *figures))
    return rows


def needs_text(decision: Decision) -> str:
    """What the engine needs to serve a row, and which rows remove key heads; may be empty."""
    needs: dict[str, list[str]] = {}
    for point in decision.points:
        if point.needs:
            needs.setdefault(point.needs, []).append(point.label)
    texts = []
    for needed, labels in needs.items():
        texts.append(f"{list_text(labels)}: needs {needed}")
    for point in decision.points:
        if point.key_heads:
            texts.append(f"{point.label}: only {point.key_heads} key heads stay")
    return "; ".join(texts)


def _losses(scores: Scores | None) -> dict[str, Loss]:
    """Group of tasks -> the first loss of the last model in it."""
    losses: dict[str, Loss] = {}
    if scores is not None:
        for loss in task_losses(scores, scores.models[-1]):
            if not loss.uninformative:
                losses.setdefault(loss.group, loss)
    return losses


def _loss_cell(loss: Loss | None) -> str:
    if loss is None:
        return ""
    return f"{loss.loss.estimate:.1f} ±{loss.loss.margin:.1f}"


def _judgement(decision: Decision, point: MeasuredShape, cut: JudgedCut | None) -> str:
    """Whether it was chosen, or why not."""
    if str(point) == decision.chosen:
        return "chosen"
    if cut is None:  # not measured
        return ""
    if cut.limit_status is LimitStatus.BEYOND:
        return "loses too much"
    return "unclear" if cut.limit_status is LimitStatus.UNCLEAR else "within limits"


def with_measurements(
    card: str, scores: Scores, verdict: Verdict, compared: Sequence[Sequence[str]] = ()
) -> str:
    """The card with verdict, warnings, scores and `compared` cuts; replaces earlier ones."""
    rows = []
    for task in scores.tasks:
        for metric in scores.metrics(task):
            shown = [headline_score(scores, model, task, metric) for model in scores.models]
            mean = averaged_settings_text(scores, task, metric)
            values = [UNITS[score.unit].text(score.value) for score in shown]
            name = f"{metric} ({mean})" if mean else metric
            rows.append([task, name, str(len(shown[0].samples)), *values])
    warnings = [f"- Warning: {escape(text)}." for text in verdict.warnings]
    lines = [
        "## Measured",
        "",
        f"**{str(verdict.outcome).capitalize()}**: {escape(verdict.reason)}.",
        "",
        *warnings,
        *([""] if warnings else []),
        *table_lines(["task", "metric", "samples", *scores.models], rows, words=2),
        "",
        "Against the original, on the same samples (95% intervals, paired; losses are positive):",
        "",
    ]
    for model in scores.models[1:]:
        for x in task_losses(scores, model):
            lines.append(f"- {escape(x.task)}, {escape(x.metric)}, {escape(model)}: {x.sentence}")
    if compared:
        lines += ["", "Cuts that were compared:", "", *table_lines(HEADER, compared)]
        lines += ["", f"{CAPTION}."]
    return with_measured_section(card, lines)
