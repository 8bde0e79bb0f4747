"""What the model still does, with intervals."""

from collections.abc import Iterator, Mapping
from typing import Any

from ...artifacts.losses import Loss, headline, losses, recall_change
from ...artifacts.scores import Scores
from ...maths.formatting import score_text
from ...maths.units import is_number
from ..charts import interval_chart
from ..document import Block, Picture, Table, Text
from ..findings import Findings
from .records import mapping, missing, strings

TITLE = "Quality"

CHECKS = {
    "sliced_against_masked": "cut model against the original with those channels masked",
    "prefill_against_decode": "decoding token by token against prefill",
    "prefill_against_decode_before": "the same, in the original",
}


def blocks(found: Findings) -> Iterator[Block]:
    """Checks of the cut itself, then scores against the original."""
    if found.trim is not None:
        yield from _checked(found.trim)
    scores = found.scores
    if scores is None or len(scores.models) < 2:
        yield from missing(
            "Quality was not measured. A cut loses quality; recall suffers before perplexity.",
            "statetrim evaluate SMALL --baseline MODEL --tasks wikitext,squad,mqar --data DATA "
            "-o scores.json",
        )
        return
    judged = [x for model in scores.models[1:] for x in losses(scores, model)]
    header = ("task", "metric", "samples", *scores.models)
    yield Text(f"The original is {scores.baseline}. Intervals are of 95%, paired by sample.")
    yield Table((*header, "against the original"), list(_main_rows(scores, judged)))
    for unit, words in (
        ("share", "percentage points lost"),
        ("perplexity", "rise of perplexity, % of the original's"),
        ("nats", "KL from the original, nats per token"),
    ):
        rows = [
            (_case(scores, x), x.loss.estimate, x.loss.low, x.loss.high)
            for x in judged
            if x.unit == unit and not x.floor
        ]
        chart = interval_chart(rows, f"Loss by task with 95% intervals: {words}", words)
        if chart:
            yield Picture(
                chart,
                f"How to read it: a dot is the measured loss, its bar the 95% interval ({words}); "
                f"a bar that touches the dashed zero line is no proven loss. Left is better.",
            )
    for model in scores.models[1:]:
        if moved := recall_change(scores, model):
            yield Text(
                f"Mean recall of {model}: {moved.estimate:+.2f} points, between {moved.low:+.2f} "
                f"and {moved.high:+.2f}."
            )
    main = {(x.task, x.metric) for x in judged}
    others = [
        _cells(scores, task, metric)
        for task in scores.tasks
        for metric in scores.metrics(task)
        if (task, metric) not in main
    ]
    if others:
        yield Table(header, others, caption="All other metrics", folded=True)
    yield Text(
        "There are several verdicts here and no correction for that: one in twenty would be wrong "
        "by chance."
    )


def _checked(record: Mapping[str, Any]) -> Iterator[Block]:
    """What `trim` compared and found worth a warning."""
    for warning in strings(record.get("warnings")):
        yield Text(f"Warning: {warning}.", "note")
    checks = mapping(record.get("checks"))
    rows = [
        (words, f"{checks[name]:.1e}")
        for name, words in CHECKS.items()
        if is_number(checks.get(name))
    ]
    if rows:
        yield Table(("check", "largest difference"), rows, caption="Self-checks, relative")


def _main_rows(scores: Scores, judged: list[Loss]) -> Iterator[tuple[str, ...]]:
    for task, metric in dict.fromkeys((x.task, x.metric) for x in judged):
        said = [
            x.sentence if len(scores.models) == 2 else f"{x.model}: {x.sentence}"
            for x in judged
            if (x.task, x.metric) == (task, metric)
        ]
        yield (*_cells(scores, task, metric), "; ".join(said))


def _cells(scores: Scores, task: str, metric: str) -> tuple[str, ...]:
    found = [headline(scores, model, task, metric) for model in scores.models]
    return (
        task,
        metric,
        str(len(found[0].samples)),
        *(score_text(score.value, score.unit) for score in found),
    )


def _case(scores: Scores, x: Loss) -> str:
    model = "" if len(scores.models) == 2 else f" ({x.model})"
    return f"{x.task}, {x.metric}{model}: {x.sentence}"
