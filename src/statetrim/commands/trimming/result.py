"""What a person sees when `trim` has finished: scores, checks, sizes, commands and verdict."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...artifacts.decision import Decision
from ...artifacts.scores import Scores
from ...artifacts.state_sizes import DTYPE_BYTES
from ...artifacts.steps import TrimRecord
from ...judging.losses import MetricValue
from ...judging.recommendation import measured_values
from ...maths.formatting import bytes_text
from ...pipelines.job import Job
from ...pipelines.stages import DECISION, RECORD
from ...serving.capacity.compare import (
    count_text,
    default_state_dtype,
    known_capacities,
    memory_lines,
)
from ...serving.deployment import ship_verdict, steps_after_trim
from ...serving.matrix import ServedBy
from ...storage.checkpoint import Checkpoint
from ...storage.output import ARTIFACTS
from ...tasks import TASKS
from ...tasks.unit import SHARE
from .. import terminal
from ..measures.evaluate import show_scores, show_verdict
from .observer import TerminalObserver
from .planned_steps import state_share


def show_trimmed(cut: Checkpoint, job: Job, observer: TerminalObserver, *, as_json: bool) -> None:
    """Print the scores, checks, sizes, commands and verdict of a finished trim."""
    if not observer.started:
        terminal.note(f"{cut.path} is already complete; nothing was run")
    artifacts = cut.path / ARTIFACTS
    path, scores = artifacts / RECORD, Scores.load(artifacts / "scores.json")
    has_decision = (artifacts / DECISION).exists()
    decision = Decision.load(artifacts / DECISION) if has_decision else None
    compared = decision.load_scores(artifacts) if decision else {}
    chosen_by = compared.get(str(decision.chosen)) if decision else None
    verdict = ship_verdict(scores, scores.models[1], cut, earlier=chosen_by)
    serving = job.options.counted_in
    if as_json:
        capacity = known_capacities(job.model, cut.geometry, serving)
        results: dict[str, Any] = {
            "output": str(cut.path),
            "scores": scores.as_json(samples=False),
            "ship": verdict.as_json(),
            "state_share": state_share(job, cut.geometry),
            "capacity": [asdict(row) for row in capacity],
        }
        terminal.print_json(results | TrimRecord.read_fields(path))
        return
    if decision:
        _show_decision(decision, compared, job)
    show_scores(scores, [], str(artifacts / "scores.json"), as_json=False)
    record, state_storage = TrimRecord.load(path), scores.lineage.get("state")
    checks = record.checks
    if state_storage:
        terminal.print_text(f"the cut was measured with states in {state_storage['dtype']}")
    for sentence in (
        f"checked in {checks['runtime']}: equals the masked original within "
        f"{checks['sliced_against_masked']:.0e}, decode equals prefill within "
        f"{checks['prefill_against_decode']:.0e}",
        *memory_lines(job.model, cut.geometry, serving),
        f"the smaller checkpoint is {cut.path}; its artifacts are in {artifacts}",
        "",
    ):
        terminal.print_text(sentence)
    terminal.print_command(_load_line(cut, checks["runtime"]))
    for line in ServedBy.of(str(cut.config.get("model_type")), cut.geometry).texts:
        terminal.print_text(line)
    show_verdict(verdict, str(cut.path), steps_after_trim(verdict, job.model, cut))


def _show_decision(decision: Decision, compared: Mapping[str, Scores], job: Job) -> None:
    """Print a row per shape: its state and sequences as the engine serves it, and the scores by
    which tasks are judged; the others are only in the file."""
    serving = job.options.counted_in
    dtype = default_state_dtype(serving.counted_by, job.model)
    rows, metrics = [], dict[str, None]()
    for point, values in measured_values(decision, compared):
        size = point.state_bytes if point.is_rounded else point.bytes_in(DTYPE_BYTES[dtype])
        sequences = "" if point.sequences is None else count_text(point.sequences)
        main = [x for x in values if x.task not in TASKS or x.metric == TASKS[x.task].metric]
        metrics |= dict.fromkeys(f"{x.task} {x.metric}" for x in main)
        rows.append((str(point), bytes_text(size), sequences, *map(_measurement_text, main)))
    header = ("keys x values", f"state, {dtype}", "sequences", *metrics)
    terminal.print_table(f"{decision.model}: quality against state", header, rows, left=())
    terminal.print_text(f"{serving.counted}; intervals of 95%, paired with the original")
    for point in decision.points:
        if point.widths:
            terminal.print_text(f"{point}: {point.widths}")
    terminal.print_text(f"chosen: {decision.sentence}")


def _measurement_text(x: MetricValue) -> str:
    """The value, a share in percent, and half of the interval's width, which the original lacks."""
    scale, unit = (100, "%") if x.unit is SHARE else (1, "")
    text = f"{scale * x.value:.3g}{unit}"
    if x.low is None or x.high is None:
        return text
    return f"{text} ±{scale * (x.high - x.low) / 2:.2g}"


def _load_line(cut: Checkpoint, runtime: str) -> str:
    """How to load it; widths by layer need our loader."""
    loader, package = f"{cut.family.auto_class(cut.config)}.from_pretrained", "fla"
    if cut.geometry.widths:
        loader, package = "statetrim.load", "statetrim"
    is_stock = runtime == "transformers" and not cut.geometry.widths
    hint = "" if is_stock else f"   # after: import {package}"
    return f"load it:   {loader}({str(cut.path)!r}){hint}"
