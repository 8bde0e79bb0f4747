"""What the model still does, with intervals."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...artifacts.losses import (
    Loss,
    averaged_settings_text,
    headline_score,
    mean_recall_text,
    task_losses,
)
from ...artifacts.scores import Scores
from ...artifacts.verdict import compare_with_limit, random_controls, ship_limit
from ...errors import StatetrimError
from ...maths.formatting import score_text
from ...maths.units import is_number
from ..charts import interval_chart
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings
from ..names import names
from ..records import mapping

TITLE = "Quality"
PRUNED = "pruned"  # what trim calls the cut before later steps

CHECKS = {
    "sliced_against_masked": "cut model against the original with those channels masked",
    "prefill_against_decode": "decoding token by token against prefill",
    "prefill_against_decode_before": "the same, in the original",
}
UNITS = (
    ("share", "percentage points lost"),
    ("perplexity", "rise of perplexity, % of the original's"),
    ("nats", "KL from the original, nats per token"),
)


def blocks(found: Findings) -> Iterator[Block]:
    """Scores against the original, then checks of the cut itself."""
    scores = found.scores
    if scores is None or len(scores.models) < 2:
        words = names(found)
        yield Missing(
            "Quality was not measured. A cut loses quality; recall suffers before perplexity.",
            [
                f"statetrim evaluate {words.small} --baseline {words.model} --tasks text,mqar "
                f"--text {words.text} --skip {words.tokens} --limit 32 -o scores.json"
            ],
        )
    else:
        yield from _measured(scores, found.scored_name)
    if found.trim is not None:
        yield from _checked(found.trim)


def _measured(scores: Scores, own: str | None) -> Iterator[Block]:
    try:
        judged = [x for model in scores.models[1:] for x in task_losses(scores, model)]
    except StatetrimError as error:
        yield Text(f"These scores cannot be compared: {error}.", "note")
        return
    who = [f"The original is {scores.baseline}"]
    who += [f"this checkpoint is {own}"] if own else []
    if own and own != PRUNED and PRUNED in scores.models:
        who.append(f"{PRUNED} is the same cut before it was refitted or trained")
    who += [f"{name} is a random cut" for name in random_controls(scores)]
    yield Text(
        f"{', '.join(who)}. Losses are against the original, in percentage points, percent of "
        f"perplexity or nats; a positive figure is a loss, a negative one a gain. Intervals are of "
        f"95%, paired by sample. Of a task with settings the figure is the mean of those on which "
        f"the original is above chance, the same for every model."
    )
    stored = mapping(scores.lineage.get("state")).get("dtype")
    if isinstance(stored, str):
        yield Text(
            f"All but the original ran with states stored in {stored[:20]} as an engine would, so "
            f"what is lost is the cut's and the dtype's together."
        )
    header = ("task", "model", "samples", "original", "now", "loss", "limit")
    yield Table(header, list(_main_rows(scores, judged)))
    for unit, words in UNITS:
        rows = [
            (_case(scores, x), x.loss.estimate, x.loss.low, x.loss.high)
            for x in judged
            if x.unit == unit and not x.uninformative
        ]
        chart = interval_chart(rows, f"Loss by task with 95% intervals: {words}", words)
        if chart:
            yield Picture(
                chart,
                f"How to read it: a dot is the measured loss, its bar the 95% interval ({words}); "
                f"a bar that touches the dashed zero line is no proven loss. Left is better.",
            )
    for model in scores.models[1:]:
        if said := mean_recall_text(scores, model):
            yield Text(f"Mean recall of {model}: {said}.")
    yield from _others(scores, judged)
    yield Text(
        "There are several figures here and no correction for that: one in twenty intervals would "
        "miss the truth by chance. Tasks on which the original is not shown to be above chance do "
        "not count."
    )


def _others(scores: Scores, judged: list[Loss]) -> Iterator[Block]:
    main = {(x.task, x.metric) for x in judged}
    others = [
        _cells(scores, task, metric)
        for task in scores.tasks
        for metric in scores.metrics(task)
        if (task, metric) not in main
    ]
    if others:
        header = ("task", "metric", "samples", *scores.models)
        yield Table(header, others, caption="Settings and other metrics", folded=True)


def _checked(record: Mapping[str, Any]) -> Iterator[Block]:
    """What `trim` compared, to be sure of the cut itself."""
    checks = mapping(record.get("checks"))
    rows = [
        (words, f"{checks[name]:.1e}")
        for name, words in CHECKS.items()
        if is_number(checks.get(name))
    ]
    if rows:
        yield Table(("check", "largest difference"), rows, caption="Self-checks, relative")


def _main_rows(scores: Scores, judged: list[Loss]) -> Iterator[tuple[str, ...]]:
    for x in sorted(judged, key=lambda x: x.task):
        limit, mean = ship_limit(x), averaged_settings_text(scores, x.task, x.metric)
        yield (
            f"{x.task}, {x.metric}{f' ({mean})' if mean else ''}",
            x.model,
            str(x.samples),
            score_text(x.before, x.unit),
            score_text(x.after, x.unit),
            x.sentence,
            ""
            if limit is None or x.uninformative
            else f"{compare_with_limit(x.loss, limit)} ({limit:g})",
        )


def _cells(scores: Scores, task: str, metric: str) -> tuple[str, ...]:
    found = [headline_score(scores, model, task, metric) for model in scores.models]
    return (
        task,
        metric,
        str(len(found[0].samples)),
        *(score_text(score.value, score.unit) for score in found),
    )


def _case(scores: Scores, x: Loss) -> str:
    model = "" if len(scores.models) == 2 else f" ({x.model})"
    return f"{x.task}, {x.metric}{model}: {x.sentence}"
