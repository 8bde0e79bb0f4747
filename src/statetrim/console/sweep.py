"""What a person sees of a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from ..artifacts.sweep import Sweep, SweepScore
from ..maths.formatting import size
from ..pipelines.estimate import Step
from ..pipelines.job import Job
from ..serving.engines import Shape
from ..serving.shapes import refusing
from . import terminal
from .state import shapes_table, state_bytes
from .trim import show_download, steps_table


def show_sweep_steps(
    jobs: Mapping[str, Job], steps: Sequence[Step], where: str, *, dry_run: bool, as_json: bool
) -> None:
    """The plan of a sweep, before anything is done; of a dry run it is the result."""
    model = next(iter(jobs.values())).model
    if as_json:
        shapes = {name: state_bytes(model.geometry, job.after) for name, job in jobs.items()}
        told = {"output": where, "shapes": shapes, "steps": [asdict(step) for step in steps]}
        terminal.show_json(told)
        return
    show = terminal.show if dry_run else terminal.announce
    show(steps_table(f"sweep {model.name} -> {where}", steps))
    kind = str(model.config.get("model_type"))
    after = {name: job.after for name, job in jobs.items()}
    refused = {name: refusing(kind, Shape.of(geometry)) for name, geometry in after.items()}
    show(shapes_table("Shapes to measure", model.geometry, after, refused))
    show_download(model)


def show_sweep(sweep: Sweep, where: str, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json({"output": where, **asdict(sweep)})
        return
    table = Table(title=f"{sweep.model}: quality against state", title_justify="left")
    metrics = [name for name in sweep.points[0].scores if _shown(name)]
    for name in ("keys x values", "state", "in bfloat16", *metrics):
        table.add_column(name, justify="right")
    for point in sweep.points:
        cells = [_measured(point.scores[name]) for name in metrics]
        shape = f"{point.keep} x {point.keep_values}"
        both = size(point.state_bytes / 2)
        table.add_row(shape, size(point.state_bytes), both, *cells)
    terminal.show(table)
    terminal.say(
        "state in float32, per sequence; bfloat16 is the engine's option and needs no cut (what it "
        "costs was not measured); intervals of 95%, paired with the original; plans, scores and "
        f"the picture are in {where}",
    )


def _shown(metric: str) -> bool:
    """Leave out the many loads of one recall task; the file has them."""
    return not metric.split()[-1].startswith("pairs_")


def _measured(found: SweepScore) -> str:
    scale, unit = (100, "%") if found.unit == "share" else (1, "")
    text = f"{scale * found.value:.3g}{unit}"
    if found.low is None or found.high is None:
        return text
    return f"{text} ±{scale * (found.high - found.low) / 2:.2g}"
