"""What a person sees of `trim`: the steps and their price, each stage, and what came of it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from ..artifacts.scores import Scores
from ..artifacts.sweep import Measured, Sweep
from ..maths.formatting import duration, size
from ..maths.units import MIB
from ..pipelines.estimate import Step
from ..pipelines.observer import Watch
from ..pipelines.options import ENGINES, Job
from ..pipelines.trim import RECORD
from ..serving.deployment import deployment
from ..serving.inspect import stored_dtype
from ..storage.checkpoint import Checkpoint
from ..storage.json_file import read_object
from ..storage.output import ARTIFACTS
from . import recover as recovery_console
from . import terminal as console

_out = Console(markup=False)
_err = Console(stderr=True, markup=False)


class Spoken(Watch):
    """A line for each stage on standard error, and a bar where it takes long."""

    def __init__(self) -> None:
        self.begun: set[str] = set()

    def begins(self, stage: str) -> None:
        self.begun.add(stage)
        _err.print(f"{stage} ...", highlight=False)

    def kept(self, stage: str) -> None:
        if stage not in self.begun:
            _err.print(f"{stage}: done before, kept", highlight=False)

    def tokens(self, label: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return console.tokens_progress(label)

    def bytes(self, label: str, total: int) -> AbstractContextManager[Callable[[int], None]]:
        return console.bytes_progress(label, total)

    def training(self) -> AbstractContextManager[tuple[Callable[..., None], Callable[..., None]]]:
        return recovery_console.training_progress()

    def tasks(self) -> AbstractContextManager[Callable[[str, str, int, int], None]]:
        return console.tasks_progress()

    def layers(self, label: str) -> Callable[[Any], Any]:
        wrap: Callable[[Any], Any] = console.layers_progress(label)
        return wrap


def show_steps(job: Job, steps: Sequence[Step], where: str, *, as_json: bool) -> None:
    """The plan of the run, before anything is done."""
    if as_json:
        console.show_json(
            {
                "output": where,
                "head_k_dim": [job.model.geometry.head_k_dim, job.after.head_k_dim],
                "head_v_dim": [job.model.geometry.head_v_dim, job.after.head_v_dim],
                "state_bytes": [4 * job.model.geometry.state_numel, 4 * job.after.state_numel],
                "streams_weights": job.streamed,
                "steps": [asdict(step) for step in steps],
            }
        )
        return
    before, after = job.model.geometry, job.after
    table = Table(title=f"trim {job.model.path.resolve().name} -> {where}", title_justify="left")
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
    _err.print(table)
    saved = f"{size(4 * before.state_numel)} -> {size(4 * after.state_numel)}"
    _err.print(f"recurrent state per sequence, float32: {saved}", highlight=False)
    if job.streamed:
        _err.print("weights stay on disk and are streamed: memory is short", highlight=False)


def show_trimmed(small: Checkpoint, watch: Spoken, *, as_json: bool) -> None:
    if not watch.begun:
        text = f"{small.path} was complete already, made by this very command; nothing was run"
        _err.print(text, highlight=False, soft_wrap=True)
    home = small.path / ARTIFACTS
    found, scores = read_object(home / RECORD, MIB), Scores.load(home / "scores.json")
    if as_json:
        console.show_json(
            {"output": str(small.path), "scores": scores.as_json(samples=False), **found}
        )
        return
    console.show_scores(scores, str(home / "scores.json"), as_json=False)
    checks = found["checks"]
    for line in (
        f"checked in {checks['runtime']}: equals the masked original within "
        f"{checks['sliced_against_masked']:.0e}, decode equals prefill within "
        f"{checks['prefill_against_decode']:.0e}",
        f"the smaller checkpoint is {small.path}; its artifacts are in {home}",
        "",
        "load it:   AutoModelForCausalLM.from_pretrained("
        f"{str(small.path)!r}){_needs(checks['runtime'])}",
        *_serving(small),
        f"push it:   hf upload YOUR-NAME/{small.path.resolve().name} {small.path}   "
        "# statetrim/ names your text and model: --exclude 'statetrim/*' leaves it out",
    ):
        _out.print(line, highlight=False, soft_wrap=True)
    for warning in found["warnings"]:
        _err.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True)


def _serving(small: Checkpoint) -> list[str]:
    """A command for each engine that takes this shape, and the names of those that do not."""
    found = deployment(small, None, dtype=stored_dtype(small))
    serving = [
        f"serve it:  {command.replace('MODEL', str(small.path))}   # {engine}"
        for engine, command in found.commands.items()
        if engine in ENGINES.values()
    ]
    refused = sorted({line.engine for line in found.engines if line.verdict == "refused"})
    if refused:
        serving.append(f"refused by {', '.join(refused)}: statetrim inspect {small.path} says why")
    if serving:
        return serving
    return [
        f"no server is known for this model type; statetrim inspect {small.path} says what runs it"
    ]


def show_sweep(sweep: Sweep, where: str, *, as_json: bool) -> None:
    if as_json:
        console.show_json({"output": where, **asdict(sweep)})
        return
    table = Table(title=f"{sweep.model}: quality against state", title_justify="left")
    metrics = [name for name in sweep.points[0].scores if _shown(name)]
    for name in ("keys x values", "state", *metrics):
        table.add_column(name, justify="right")
    for point in sweep.points:
        cells = [_measured(point.scores[name]) for name in metrics]
        shape = f"{point.keep} x {point.keep_values}"
        table.add_row(shape, size(point.state_bytes), *cells)
    _out.print(table)
    _out.print(
        f"intervals of 95%, paired with the original; plans, scores and the picture are in {where}",
        highlight=False,
        soft_wrap=True,
    )


def _shown(metric: str) -> bool:
    """Leave out the many loads of one recall task; the file has them."""
    return not metric.split()[-1].startswith("pairs_")


def _measured(found: Measured) -> str:
    scale, unit = (100, "%") if found.unit == "share" else (1, "")
    text = f"{scale * found.value:.3g}{unit}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ±{scale * (found.high - found.low) / 2:.2g}"


def _needs(runtime: str) -> str:
    return "" if runtime == "transformers" else "   # after: import fla"
