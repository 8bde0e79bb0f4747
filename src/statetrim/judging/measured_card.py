"""The section of a model card on what was measured: the verdict, the scores and the losses."""

from collections.abc import Sequence

from ..artifacts.card.markdown import escape, table_lines
from ..artifacts.card.model_card import with_measured_section
from ..artifacts.scores import Scores
from ..tasks.unit import UNITS
from .decision_table import CAPTION, HEADER
from .losses import averaged_settings_text, headline_score, task_losses
from .verdict import Verdict


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
