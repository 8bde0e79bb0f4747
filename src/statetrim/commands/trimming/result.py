"""What a person sees when `trim` has finished: scores, checks, sizes, commands and verdict."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...artifacts.decision import Decision, NoCutNeeded
from ...artifacts.scores import Scores
from ...artifacts.steps import TrimRecord
from ...judging.decision_table import CAPTION, HEADER, decision_rows, needs_text
from ...pipelines.job import Job
from ...reporting.findings import read_findings
from ...serving.capacity.compare import known_capacities, memory_lines
from ...serving.deployment import ship_verdict, steps_after_trim
from ...serving.matrix import ServedBy
from ...storage.checkpoint import Checkpoint
from ...storage.output import ARTIFACTS
from .. import terminal
from ..measures.evaluate import show_scores, show_verdict
from .observer import TerminalObserver
from .planned_steps import state_share


def show_trimmed(cut: Checkpoint, job: Job, observer: TerminalObserver, *, as_json: bool) -> None:
    """Print the scores, checks, sizes, commands and verdict of a finished trim."""
    if not observer.started:
        terminal.note(f"{cut.path} is already complete; nothing was run")
    artifacts, findings = cut.path / ARTIFACTS, read_findings(cut)
    scores, record = findings.scores, findings.trim
    assert scores is not None and record is not None  # of every result of trim
    verdict = ship_verdict(scores, scores.models[1], cut, earlier=findings.chosen_by)
    serving = job.options.counted_in
    if as_json:
        capacity = known_capacities(job.model, cut.geometry, serving)
        results: dict[str, Any] = {
            "output": str(cut.path),
            "scores": scores.as_json(samples=False),
            "ship": asdict(verdict),
            "state_share": state_share(job, cut.geometry),
            "capacity": [asdict(row) for row in capacity],
        }
        terminal.print_json(results | TrimRecord.read_fields(artifacts / "trim.json"))
        return
    if findings.decision:
        show_decision(findings.decision, findings.compared_scores, serving.counted)
    show_scores(scores, [], str(artifacts / "scores.json"), as_json=False)
    checks, state_storage = record.checks, scores.lineage.get("state")
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
    for line in ServedBy.of(cut.model_type, cut.geometry).texts:
        terminal.print_text(line)
    show_verdict(verdict, str(cut.path), steps_after_trim(verdict, job.model, cut))


def show_no_cut(answer: NoCutNeeded, job: Job, *, as_json: bool) -> None:
    """Print that a flag of the engine is enough, and what it loses."""
    if as_json:
        terminal.print_json(
            {"output": None, "answer": str(answer), "decision": asdict(answer.decision)}
        )
        return
    show_decision(answer.decision, answer.scores, job.options.counted_in.counted)
    terminal.print_text(str(answer))


def show_decision(decision: Decision, compared: Mapping[str, Scores], counted: str) -> None:
    """Print a row per cut, those that were only predicted too, and which was chosen."""
    rows = decision_rows(decision, compared)
    terminal.print_table(f"{decision.model}: cuts compared", HEADER, rows, left=(0,))
    terminal.print_text(f"{counted}. {CAPTION}")
    if needs := needs_text(decision):
        terminal.print_text(needs)
    for point in decision.points:
        if point.is_by_layer:
            terminal.print_text(f"{point}: {point.kept}")
    if decision.chosen:
        terminal.print_text(f"chosen: {decision.sentence}")


def _load_line(cut: Checkpoint, runtime: str) -> str:
    """How to load it; widths by layer need our loader."""
    loader, package = f"{cut.family.auto_class(cut.config)}.from_pretrained", "fla"
    if cut.geometry.widths:
        loader, package = "statetrim.load", "statetrim"
    is_stock = runtime == "transformers" and not cut.geometry.widths
    hint = "" if is_stock else f"   # after: import {package}"
    return f"load it:   {loader}({str(cut.path)!r}){hint}"
