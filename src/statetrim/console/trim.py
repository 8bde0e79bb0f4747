"""What a person sees of `trim`: the steps and their price, each stage, and what came of it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from rich.table import Table

from ..artifacts.scores import Scores
from ..geometry import Geometry
from ..maths.formatting import duration, size
from ..maths.units import MIB
from ..pipelines.estimate import Step, weight_bytes
from ..pipelines.job import CONTROL, Job
from ..pipelines.observer import Watch
from ..pipelines.schedule import Schedule
from ..pipelines.stages import DECISION, RECORD
from ..progress import OnProgress, Progress
from ..progress.bar import Whole, time_left
from ..recovery.adapters import Coverage
from ..serving.deployment import serve_commands, ship_verdict
from ..serving.engine_names import ENGINES, asked_engine, engine_name, named_command
from ..serving.engines import Shape, verdicts_on
from ..serving.shapes import refusing
from ..storage.checkpoint import Checkpoint
from ..storage.json_file import read_object
from ..storage.output import ARTIFACTS
from . import terminal
from .measures.evaluate import show_scores, show_verdict
from .progress import shown
from .state import shapes_table, shared_by, state_bytes, state_sentence
from .steps.recover import announce


class TerminalWatch(Watch):
    """A line for each stage on standard error, and a bar where it takes long."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.begun: set[str] = set()
        self.schedule = Schedule(steps)
        self.new_step = False

    def enters(self, step: str) -> None:
        self.new_step |= self.schedule.enters(step)

    def begins(self, stage: str) -> None:
        self.begun.add(stage)
        left = f"  ({self._place}, {time_left(self.schedule.left())})" if self.new_step else ""
        self.new_step = False
        terminal.note(f"{stage} ...{left}")

    def kept(self, stage: str) -> None:
        self.schedule.keeps()
        if stage not in self.begun:
            terminal.note(f"{stage}: already done")

    def tells(self, sentence: str) -> None:
        terminal.note(sentence)

    @property
    def _place(self) -> str:
        return f"step {self.schedule.place + 1} of {len(self.schedule.order)}"

    def _whole(self, progress: Progress) -> Whole:
        left = self.schedule.left(progress.done / max(1, progress.total))
        return Whole(self.schedule.done(left), self._place, left)

    def announce(self, coverage: Coverage) -> None:
        announce(coverage)

    def progress(self, label: str) -> AbstractContextManager[OnProgress]:
        return shown(label, self._whole)


def show_steps(
    job: Job, steps: Sequence[Step], where: str, *, dry_run: bool, as_json: bool
) -> None:
    """The plan of the run, before anything is done; of a dry run it is the result."""
    show = terminal.show if dry_run else terminal.announce
    if as_json:
        terminal.show_json(
            {
                "output": where,
                "head_k_dim": [job.model.geometry.head_k_dim, job.after.head_k_dim],
                "head_v_dim": [job.model.geometry.head_v_dim, job.after.head_v_dim],
                **state_bytes(job.model.geometry, job.after),
                "state_share": _share(job, job.largest),
                "candidates": [str(one.shape) for one in job.candidates],
                "streams_weights": job.streamed,
                "download_bytes": _to_download(job.model),
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    show(steps_table(f"trim {job.model.name} -> {where}", steps))
    if job.candidates:
        show(_candidates(job))
        for_vllm = job.options.for_ and engine_name(job.options.for_) == "vLLM"
        if for_vllm and all("vllm-cpu" in one.refused for one in job.candidates):
            terminal.note("these are for vLLM on GPUs; on CPUs it takes others: --for vllm-cpu")
    else:
        _show_shape(job)
    if job.streamed:
        terminal.note("weights are streamed from disk, because memory is short")
    show_download(job.model)


def show_download(model: Checkpoint) -> None:
    """A dry run reads the headers on the hub."""
    if nbytes := _to_download(model):
        terminal.note(f"{size(nbytes)} of weights are not here yet; the run downloads them first")


def _to_download(model: Checkpoint) -> int:
    return 0 if model.downloaded else weight_bytes(model)


def _share(job: Job, kept: Geometry) -> dict[str, float | str | None]:
    """What was asked for and what is kept of the state's bytes, and why it is less."""
    share = kept.state_numel / job.model.geometry.state_numel
    return {"asked": job.asked, "kept": share, "why": job.shortfall}


def steps_table(title: str, steps: Sequence[Step]) -> Table:
    """What each step takes, and all of them."""
    table = Table(title=title, title_justify="left")
    for name in ("step", "what", "time", "memory", "disk"):
        table.add_column(name, justify="left" if name in ("step", "what") else "right")
    for step in steps:
        table.add_row(
            step.name,
            step.does,
            f"~{duration(step.seconds)}",
            f"~{size(step.memory)}" if step.memory else "",
            f"~{size(step.disk)}" if step.disk else "",
        )
    table.add_section()
    peak, disk = max(step.memory for step in steps), sum(step.disk for step in steps)
    whole = sum(step.seconds for step in steps)
    table.add_row("all", "", f"~{duration(whole)}", f"~{size(peak)}", f"~{size(disk)}")
    return table


def _show_shape(job: Job) -> None:
    """What becomes of the state, and who will not serve it."""
    before, after = job.model.geometry, job.after
    terminal.note(state_sentence(before, after))
    if job.cuts_heads:
        _show_heads(before, after)
        return
    if after.widths:
        terminal.warn(
            "warning: only statetrim, and vLLM with its plugin, load layers of different widths; "
            "stock libraries and engines refuse them"
        )
        return
    shape, asked = Shape.of(after), [job.options.keep, job.options.keep_values, job.options.square]
    said = [str(one) for one in asked if one is not None]
    if str(shape) not in ("x".join(said), f"{said[0]}x{said[0]}" if said else ""):
        terminal.note(f"the state is cut to {shape} (keys x values) of {Shape.of(before)}")
    refused = refusing(str(job.model.config.get("model_type")), shape)
    if refused:
        share = after.state_numel / before.state_numel
        terminal.warn(
            f"warning: {shape} is refused by {', '.join(refused)}; --state {share:.2g} compares "
            "all shapes of at most this size, and --for ENGINE allows only those that it serves"
        )


def _show_heads(before: Geometry, after: Geometry) -> None:
    terminal.note(
        f"the state is cut to {after.describe_against(before)} of {before.describe_against(after)}"
    )
    terminal.note(shared_by(before, after))
    if after.num_k_heads < before.num_k_heads:
        terminal.warn(
            "warning: removing heads lost more than removing channels of the same size in every "
            "measurement; cut channels instead (--state) if the config allows it"
        )


def _candidates(job: Job) -> Table:
    """The shapes that will be compared."""
    title = "Shapes to compare: all are predicted, the best three measured, one is kept"
    return shapes_table(
        title,
        job.model.geometry,
        {str(one.shape): target.after for one, target in job.candidates.items()},
        {str(one.shape): one.refused for one in job.candidates},
    )


def show_trimmed(small: Checkpoint, job: Job, watch: TerminalWatch, *, as_json: bool) -> None:
    if not watch.begun:
        text = f"{small.path} is already complete; nothing was run"
        terminal.note(text)
    home = small.path / ARTIFACTS
    found, scores = read_object(home / RECORD, MIB), Scores.load(home / "scores.json")
    judged = ship_verdict(scores, scores.models[1], small)
    if as_json:
        about = {"scores": scores.as_json(samples=False), "ship": judged.as_json()}
        about["state_share"] = _share(job, small.geometry)
        terminal.show_json({"output": str(small.path), **about, **found})
        return
    if (home / DECISION).exists():
        terminal.note(read_object(home / DECISION, MIB)["sentence"])
    terminal.say(columns(scores))
    show_scores(scores, [], str(home / "scores.json"), as_json=False)
    checks, stored = found["checks"], scores.lineage.get("state")
    for sentence in (
        *([f"the cut was measured with states in {stored['dtype']}"] if stored else []),
        f"checked in {checks['runtime']}: equals the masked original within "
        f"{checks['sliced_against_masked']:.0e}, decode equals prefill within "
        f"{checks['prefill_against_decode']:.0e}",
        state_sentence(job.model.geometry, small.geometry),
        f"the smaller checkpoint is {small.path}; its artifacts are in {home}",
        "",
    ):
        terminal.say(sentence)
    for line in (
        f"load it:   {small.family.auto_class(small.config)}.from_pretrained("
        f"{str(small.path)!r}){_needs(checks['runtime'])}",
        *_serving(small, asked_engine(found)),
        f"push it:   statetrim push {small.path} YOUR-NAME/{small.path.resolve().name}   "
        "# private, and without records that name your files",
    ):
        to_copy = line.startswith(("load it:", "serve it:", "push it:"))
        (terminal.say_command if to_copy else terminal.say)(line)
    show_verdict(judged, str(small.path))


def columns(scores: Scores) -> str:
    """What the models in the table of scores are."""
    original, result, *others = scores.models
    known = {
        "pruned": "pruned the same cut before it was refitted or trained",
        CONTROL: f"{CONTROL} a random cut to the same shape",
    }
    told = [f"{original} is the original", f"{result} the result"]
    return "; ".join([*told, *(known[name] for name in others if name in known)])


def _serving(small: Checkpoint, asked: str | None) -> list[str]:
    """A command for each engine that takes this shape, and the names of those that do not."""
    commands = serve_commands(small, small.geometry, str(small.path), first=asked)
    serving = [
        f"serve it:  {named_command(engine, command)}"
        for engine, command in commands.items()
        if engine in ENGINES.values()
    ]
    lines = verdicts_on(str(small.config.get("model_type")), small.geometry)
    refused = sorted({line.engine for line in lines if line.verdict == "refused"})
    if refused:
        serving.append(f"refused by {', '.join(refused)}: statetrim inspect {small.path} shows why")
    if serving:
        return serving
    return [
        f"no server is known for this model type; statetrim inspect {small.path} says what runs it"
    ]


def _needs(runtime: str) -> str:
    return "" if runtime == "transformers" else "   # after: import fla"
