"""Console output of `trim`: estimated steps, progress, and the result."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from rich.table import Table

from ..artifacts.scores import Scores
from ..geometry import Geometry
from ..maths.formatting import bytes_text, duration_text
from ..maths.units import MIB
from ..pipelines.estimate import Step, weight_bytes
from ..pipelines.job import CONTROL_METHOD, Job
from ..pipelines.observer import Observer
from ..pipelines.schedule import Schedule
from ..pipelines.stages import DECISION, RECORD
from ..progress import OnProgress, Progress
from ..progress.bar import RunProgress, time_left_text
from ..recovery.adapters import Coverage
from ..serving.deployment import serve_commands, ship_verdict
from ..serving.engine_names import ENGINE_NAMES, command_with_comment, engine_name, requested_engine
from ..serving.engines import Shape, compatibility_of_geometry
from ..serving.shapes import refusing_engines
from ..storage.checkpoint import Checkpoint
from ..storage.json_file import read_json
from ..storage.output import ARTIFACTS
from . import terminal
from .measures.evaluate import show_scores, show_verdict
from .progress import show_progress
from .state import shapes_table, state_size_json, state_size_text, tensor_parallel_text
from .steps.recover import show_coverage


class TerminalObserver(Observer):
    """Prints a line per stage to standard error, and a progress bar for long stages."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.started: set[str] = set()
        self.schedule = Schedule(steps)
        self.is_new_step = False

    def on_step(self, step: str) -> None:
        self.is_new_step |= self.schedule.start_step(step)

    def on_start(self, stage: str) -> None:
        self.started.add(stage)
        left = ""
        if self.is_new_step:
            left = f"  ({self._step_text}, {time_left_text(self.schedule.seconds_left())})"
        self.is_new_step = False
        terminal.note(f"{stage} ...{left}")

    def on_cached(self, stage: str) -> None:
        self.schedule.mark_cached()
        if stage not in self.started:
            terminal.note(f"{stage}: already done")

    def on_message(self, sentence: str) -> None:
        terminal.note(sentence)

    @property
    def _step_text(self) -> str:
        return f"step {self.schedule.position + 1} of {len(self.schedule.step_names)}"

    def _overall(self, progress: Progress) -> RunProgress:
        """Progress of the whole run; the schedule records how far the running step is."""
        left = self.schedule.seconds_left(progress.done / max(1, progress.total))
        return RunProgress(self.schedule.fraction_done(left), self._step_text, left)

    def announce(self, coverage: Coverage) -> None:
        show_coverage(coverage)

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        return show_progress(label, self._overall)


def show_steps(
    job: Job, steps: Sequence[Step], output: str, *, dry_run: bool, as_json: bool
) -> None:
    """Print the steps and shapes of a run: to standard error before it runs, to standard output if
    they are the result of a dry run."""
    show = terminal.print_table if dry_run else terminal.print_table_to_stderr
    if as_json:
        terminal.print_json(
            {
                "output": output,
                "head_k_dim": [job.model.geometry.head_k_dim, job.after.head_k_dim],
                "head_v_dim": [job.model.geometry.head_v_dim, job.after.head_v_dim],
                **state_size_json(job.model.geometry, job.after),
                "state_share": _state_share(job, job.largest_state),
                "candidates": [str(candidate.shape) for candidate in job.candidates],
                "streams_weights": job.streams_weights,
                "download_bytes": _download_bytes(job.model),
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    show(steps_table(f"trim {job.model.name} -> {output}", steps))
    if job.candidates:
        show(_candidates_table(job))
        for_vllm = job.options.for_ and engine_name(job.options.for_) == "vLLM"
        if for_vllm and all("vllm-cpu" in candidate.refused for candidate in job.candidates):
            terminal.note("these are for vLLM on GPUs; on CPUs it takes others: --for vllm-cpu")
    else:
        _show_shape(job)
    if job.streams_weights:
        terminal.note("weights are streamed from disk, because memory is short")
    show_download(job.model)


def show_download(model: Checkpoint) -> None:
    """Say how much will be downloaded, after a dry run that read only headers on the hub."""
    if nbytes := _download_bytes(model):
        size = bytes_text(nbytes)
        terminal.note(f"{size} of weights are not here yet; the run downloads them first")


def _download_bytes(model: Checkpoint) -> int:
    """Bytes of all weights if the model is not downloaded yet, else 0."""
    return 0 if model.downloaded else weight_bytes(model)


def _state_share(job: Job, kept: Geometry) -> dict[str, float | str | None]:
    """The requested and the kept fraction of the state's bytes, and why less is kept, for JSON."""
    share = kept.state_numel / job.model.geometry.state_numel
    return {"asked": job.requested_share, "kept": share, "why": job.shortfall}


def steps_table(title: str, steps: Sequence[Step]) -> Table:
    """Estimated time, memory and disk of each step, and in the last row of the run: the sum of
    times and disk, the peak of memory."""
    table = Table(title=title, title_justify="left")
    for name in ("step", "what", "time", "memory", "disk"):
        table.add_column(name, justify="left" if name in ("step", "what") else "right")
    for step in steps:
        table.add_row(
            step.name,
            step.does,
            f"~{duration_text(step.seconds)}",
            f"~{bytes_text(step.memory)}" if step.memory else "",
            f"~{bytes_text(step.disk)}" if step.disk else "",
        )
    table.add_section()
    peak, disk = max(step.memory for step in steps), sum(step.disk for step in steps)
    seconds = sum(step.seconds for step in steps)
    table.add_row(
        "all", "", f"~{duration_text(seconds)}", f"~{bytes_text(peak)}", f"~{bytes_text(disk)}"
    )
    return table


def _show_shape(job: Job) -> None:
    """Print the state's size and shape after the cut, and warn if engines refuse that shape."""
    before, after = job.model.geometry, job.after
    terminal.note(state_size_text(before, after))
    if job.removes_heads:
        _show_heads(before, after)
        return
    if after.widths:
        terminal.warn(
            "warning: only statetrim, and vLLM with its plugin, load layers of different widths; "
            "stock libraries and engines refuse them"
        )
        return
    shape = Shape.from_geometry(after)
    if not _is_requested(shape, job):
        original = Shape.from_geometry(before)
        terminal.note(f"the state is cut to {shape} (keys x values) of {original}")
    refused = refusing_engines(str(job.model.config.get("model_type")), shape)
    if refused:
        share = after.state_numel / before.state_numel
        terminal.warn(
            f"warning: {shape} is refused by {', '.join(refused)}; --state {share:.2g} compares "
            "all shapes of at most this size, and --for ENGINE allows only those that it serves"
        )


def _is_requested(shape: Shape, job: Job) -> bool:
    """Whether the options name this shape literally: both widths, or one for both axes."""
    amounts = []
    for amount in (job.options.keep, job.options.keep_values, job.options.square):
        if amount is not None:
            amounts.append(str(amount))
    if not amounts:
        return False
    return str(shape) in ("x".join(amounts), f"{amounts[0]}x{amounts[0]}")


def _show_heads(before: Geometry, after: Geometry) -> None:
    """Print to standard error how many heads stay, over how many devices they can be divided, and a
    warning if key heads are removed."""
    terminal.note(
        f"the state is cut to {after.describe_against(before)} of {before.describe_against(after)}"
    )
    terminal.note(tensor_parallel_text(before, after))
    if after.num_k_heads < before.num_k_heads:
        terminal.warn(
            "warning: removing heads lost more than removing channels of the same size in every "
            "measurement; cut channels instead (--state) if the config allows it"
        )


def _candidates_table(job: Job) -> Table:
    return shapes_table(
        "Shapes to compare: all are predicted, the best three measured, one is kept",
        job.model.geometry,
        {str(candidate.shape): target.after for candidate, target in job.candidates.items()},
        {str(candidate.shape): candidate.refused for candidate in job.candidates},
    )


def show_trimmed(cut: Checkpoint, job: Job, observer: TerminalObserver, *, as_json: bool) -> None:
    """Print the scores, checks, sizes, commands and verdict of a finished trim."""
    if not observer.started:
        terminal.note(f"{cut.path} is already complete; nothing was run")
    artifacts = cut.path / ARTIFACTS
    record, scores = read_json(artifacts / RECORD, MIB), Scores.load(artifacts / "scores.json")
    verdict = ship_verdict(scores, scores.models[1], cut)
    if as_json:
        results = {"scores": scores.as_json(samples=False), "ship": verdict.as_json()}
        results["state_share"] = _state_share(job, cut.geometry)
        terminal.print_json({"output": str(cut.path), **results, **record})
        return
    if (artifacts / DECISION).exists():
        terminal.note(read_json(artifacts / DECISION, MIB)["sentence"])
    terminal.print_text(columns_text(scores))
    show_scores(scores, [], str(artifacts / "scores.json"), as_json=False)
    checks, state_storage = record["checks"], scores.lineage.get("state")
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
    for line in (
        f"load it:   {cut.family.auto_class(cut.config)}.from_pretrained("
        f"{str(cut.path)!r}){_import_hint(checks['runtime'])}",
        *_serving_lines(cut, requested_engine(record)),
        f"push it:   statetrim push {cut.path} YOUR-NAME/{cut.path.resolve().name}   "
        "# private, and without records that name your files",
    ):
        is_command = line.startswith(("load it:", "serve it:", "push it:"))
        show_line = terminal.print_command if is_command else terminal.print_text
        show_line(line)
    show_verdict(verdict, str(cut.path))


def columns_text(scores: Scores) -> str:
    """What each column of the table of scores is, as a sentence."""
    original, result, *others = scores.models
    descriptions = {
        "pruned": "pruned the same cut before it was refitted or trained",
        CONTROL_METHOD: f"{CONTROL_METHOD} a random cut to the same shape",
    }
    sentences = [f"{original} is the original", f"{result} the result"]
    for name in others:
        if name in descriptions:
            sentences.append(descriptions[name])
    return "; ".join(sentences)


def _serving_lines(cut: Checkpoint, first_engine: str | None) -> list[str]:
    """A command for each engine that serves this cut, and the names of those that refuse it."""
    commands = serve_commands(cut, cut.geometry, str(cut.path), first_engine=first_engine)
    lines = []
    for engine, command in commands.items():
        if engine in ENGINE_NAMES.values():
            lines.append(f"serve it:  {command_with_comment(engine, command)}")
    refusing = set()
    for row in compatibility_of_geometry(str(cut.config.get("model_type")), cut.geometry):
        if row.verdict == "refused":
            refusing.add(row.engine)
    inspect = f"statetrim inspect {cut.path}"
    if refusing:
        lines.append(f"refused by {', '.join(sorted(refusing))}: {inspect} shows why")
    return lines or [f"no server is known for this model type; {inspect} says what runs it"]


def _import_hint(runtime: str) -> str:
    """A comment that fla must be imported first; empty for transformers."""
    return "" if runtime == "transformers" else "   # after: import fla"
