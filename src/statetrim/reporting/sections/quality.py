"""Losses of the cut on tasks, with intervals, and the self-checks of `trim`."""

from collections.abc import Iterator

from ...artifacts.scores import Scores
from ...errors import StatetrimError
from ...judging.control import random_cuts
from ...judging.limits import limit_status, ship_limit
from ...judging.losses import Loss, averaged_settings_text, scores_table, task_losses
from ...maths.units import is_number
from ...tasks.unit import UNITS
from ..charts import interval_chart
from ..document import Block, Picture, Table, Text
from ..findings import Findings, missing

PRUNED_NAME = "pruned"  # trim's name for the cut before refit and recovery

CHECK_TEXTS = {
    "sliced_against_masked": "cut model against the original with those channels masked",
    "prefill_against_decode": "decoding token by token against prefill",
    "prefill_against_decode_before": "the same, in the original",
}


def blocks(findings: Findings) -> Iterator[Block]:
    """Losses against the original, then the self-checks of `trim`."""
    scores = findings.scores
    if scores is None or len(scores.models) < 2:
        yield missing(
            findings,
            "Quality was not measured. A cut loses quality; recall suffers before perplexity.",
            "statetrim evaluate {cut} --baseline {model} --tasks text,mqar --text {text} "
            "--skip {tokens} --limit 32 -o scores.json",
        )
    else:
        yield from _score_blocks(scores, findings.scored_name)
    checks = findings.trim.checks if findings.trim is not None else {}
    rows = []
    for name, check_text in CHECK_TEXTS.items():
        if is_number(checks.get(name)):
            rows.append((check_text, f"{checks[name]:.1e}"))
    if rows:
        yield Table(("check", "largest difference"), rows, caption="Self-checks, relative")


def _score_blocks(scores: Scores, own_name: str | None) -> Iterator[Block]:
    """Tables and charts of all losses; one note if the scores cannot be compared."""
    try:
        all_losses = [x for model in scores.models[1:] for x in task_losses(scores, model)]
    except StatetrimError as error:
        yield Text(f"These scores cannot be compared: {error}.", "note")
        return
    yield Text(
        f"{_roles_text(scores, own_name)}. Losses are against the original, in percentage points, "
        f"percent of perplexity or nats; a positive figure is a loss, a negative one a gain. "
        f"Intervals are of 95%, paired by sample. Of a task with settings the figure is the mean "
        f"of those on which the original is above chance, the same for every model."
    )
    storage = scores.lineage.get("state")
    if isinstance(storage, dict) and isinstance(storage.get("dtype"), str):
        yield Text(
            f"All but the original ran with states stored in {storage['dtype'][:20]} as an engine "
            f"would, so what is lost is the cut's and the dtype's together."
        )
    header = ("task", "model", "samples", "original", "now", "loss", "limit")
    yield Table(header, list(_loss_rows(scores, all_losses)))
    for unit in UNITS.values():
        rows, title = [], unit.loss_title
        for x in all_losses:
            if x.unit is unit and not x.uninformative:
                model = "" if len(scores.models) == 2 else f" ({x.model})"
                label = f"{x.task}, {x.metric}{model}: {x.sentence}"
                rows.append((label, x.loss.estimate, x.loss.low, x.loss.high))
        yield Picture(
            interval_chart(rows, f"Loss by task with 95% intervals: {title}", title),
            f"How to read it: a dot is the measured loss, its bar the 95% interval ({title}); a "
            f"bar that touches the dashed zero line is no proven loss. Left is better.",
        )
    table = scores_table(scores)
    caption = "All scores, of settings and other metrics too"
    yield Table(table.header, table.rows, caption, folded=True)
    yield Text(
        "There are several figures here and no correction for that: one in twenty intervals would "
        "miss the truth by chance. Tasks on which the original is not shown to be above chance do "
        "not count."
    )


def _roles_text(scores: Scores, own_name: str | None) -> str:
    roles = [f"The original is {scores.baseline}"]
    if own_name:
        roles.append(f"this checkpoint is {own_name}")
    if own_name and own_name != PRUNED_NAME and PRUNED_NAME in scores.models:
        roles.append(f"{PRUNED_NAME} is the same cut before it was refitted or trained")
    roles += [f"{name} is a random cut" for name in random_cuts(scores)]
    return ", ".join(roles)


def _loss_rows(scores: Scores, all_losses: list[Loss]) -> Iterator[tuple[str, ...]]:
    """Task and metric, model, samples, scores before and after, loss, and its standing against the
    limit; by task. The last is empty without a limit or if the task is uninformative."""
    for x in sorted(all_losses, key=lambda loss: loss.task):
        settings_text = averaged_settings_text(scores, x.task, x.metric)
        status, limit_text = limit_status(x), ""
        if status is not None and not x.uninformative:
            limit_text = f"{status} ({ship_limit(x):g})"
        yield (
            f"{x.task}, {x.metric}{f' ({settings_text})' if settings_text else ''}",
            x.model,
            str(x.samples),
            x.unit.text(x.before),
            x.unit.text(x.after),
            x.sentence,
            limit_text,
        )
