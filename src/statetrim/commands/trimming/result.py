"""What a person sees when `trim` has finished: scores, checks, sizes, commands and verdict."""

from ...artifacts.decision import Decision, ShapeScore
from ...artifacts.scores import Scores
from ...artifacts.steps import TrimRecord
from ...maths.formatting import bytes_text
from ...pipelines.job import Job
from ...pipelines.stages import DECISION, RECORD
from ...serving.deployment import ship_verdict
from ...serving.engines import NEEDS_PLUGIN, compatibility_of_geometry
from ...serving.next_steps import RunFacts, next_steps
from ...storage.checkpoint import Checkpoint
from ...storage.output import ARTIFACTS
from .. import terminal
from ..measures.evaluate import show_scores, show_verdict
from ..state import state_size_text
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
    chosen_by = decision.chosen_scores(artifacts) if decision else None
    verdict = ship_verdict(scores, scores.models[1], cut, earlier=chosen_by)
    if as_json:
        results = {"scores": scores.as_json(samples=False), "ship": verdict.as_json()}
        results["state_share"] = state_share(job, cut.geometry)
        fields = TrimRecord.read_fields(path)
        terminal.print_json({"output": str(cut.path), **results, **fields})
        return
    if decision:
        _show_decision(decision)
    show_scores(scores, [], str(artifacts / "scores.json"), as_json=False)
    record, state_storage = TrimRecord.load(path), scores.lineage.get("state")
    checks = record.checks
    if state_storage:
        terminal.print_text(f"the cut was measured with states in {state_storage['dtype']}")
    for sentence in (
        f"checked in {checks['runtime']}: equals the masked original within "
        f"{checks['sliced_against_masked']:.0e}, decode equals prefill within "
        f"{checks['prefill_against_decode']:.0e}",
        state_size_text(job.model.geometry, cut.geometry),
        f"the smaller checkpoint is {cut.path}; its artifacts are in {artifacts}",
        "",
    ):
        terminal.print_text(sentence)
    terminal.print_command(_load_line(cut, checks["runtime"]))
    for line in _engine_lines(cut):
        terminal.print_text(line)
    show_verdict(verdict, str(cut.path), next_steps(verdict, job.model, cut, _facts(job, cut)))


def _facts(job: Job, cut: Checkpoint) -> RunFacts:
    return RunFacts(
        model=str(job.model.path),
        cut=str(cut.path),
        text=str(job.options.text),
        tokens=str(job.options.tokens),
        skip=job.slices.evaluation.start,
        samples=job.options.limit,
        engine=job.options.for_,
        tried_by_layer=job.options.by_layer,
    )


def _show_decision(decision: Decision) -> None:
    # The many settings of a recall task are only in the file.
    names = decision.points[0].scores
    metrics = [name for name in names if not name.split()[-1].startswith("pairs_")]
    rows = []
    for point in decision.points:
        cells = [_measurement_text(point.scores[name]) for name in metrics]
        sizes = bytes_text(point.state_bytes), bytes_text(point.state_bytes / 2)
        if point.is_rounded:
            sizes = "", sizes[0]
        rows.append((str(point), *sizes, *cells))
    title = f"{decision.model}: quality against state"
    header = ("keys x values", "state", "in bfloat16", *metrics)
    terminal.print_table(title, header, rows, left=())
    measured = any(point.is_rounded for point in decision.points)
    unknown = "" if measured else " (what it costs was not measured)"
    terminal.print_text(
        f"state in float32, per sequence; bfloat16 is the engine's option and needs no cut{unknown}"
        "; intervals of 95%, paired with the original"
    )
    terminal.print_text(f"chosen: {decision.sentence}")


def _measurement_text(measurement: ShapeScore) -> str:
    """The value, a share in percent, and half of the interval's width, which the original lacks."""
    scale, unit = (100, "%") if measurement.unit == "share" else (1, "")
    text = f"{scale * measurement.value:.3g}{unit}"
    if measurement.low is None or measurement.high is None:
        return text
    return f"{text} ±{scale * (measurement.high - measurement.low) / 2:.2g}"


def _load_line(cut: Checkpoint, runtime: str) -> str:
    """How to load it; widths by layer need our loader."""
    loader, package = f"{cut.family.auto_class(cut.config)}.from_pretrained", "fla"
    if cut.geometry.widths:
        loader, package = "statetrim.load", "statetrim"
    is_stock = runtime == "transformers" and not cut.geometry.widths
    hint = "" if is_stock else f"   # after: import {package}"
    return f"load it:   {loader}({str(cut.path)!r}){hint}"


def _engine_lines(cut: Checkpoint) -> list[str]:
    """The names of the engines that serve this cut, that need a plugin, and that refuse it."""
    lines = []
    rows = compatibility_of_geometry(str(cut.config.get("model_type")), cut.geometry)
    by_plugin = {row.engine for row in rows if row.error == NEEDS_PLUGIN}
    served = {row.engine for row in rows if row.serves}
    refusing = set()
    for row in rows:
        if row.verdict == "refused" and row.current and row.engine not in by_plugin:
            on_some = row.engine in served
            refusing.add(f"{row.engine} on {row.hardware}" if on_some else row.engine)
    if served:
        lines.append(f"served by {', '.join(sorted(served))}")
    if by_plugin:
        lines.append(f"served by {', '.join(sorted(by_plugin))}: {NEEDS_PLUGIN}")
    inspect = f"statetrim inspect {cut.path}"
    if refusing:
        lines.append(f"refused by {', '.join(sorted(refusing))}: {inspect} shows why")
    return lines or [f"no server is known for this model type; {inspect} says what runs it"]
