"""What a person sees of `trim --sweep`."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ...artifacts.sweep import Sweep, SweepScore
from ...maths.formatting import bytes_text
from ...pipelines.estimate import Step
from ...pipelines.job import Job
from ...serving.engines import Shape
from ...serving.shapes import refusing_engines
from .. import terminal
from ..state import shapes_table, state_size_json
from .planned_steps import show_download, steps_table


def show_sweep_steps(
    jobs: Mapping[str, Job], steps: Sequence[Step], output: str, *, dry_run: bool, as_json: bool
) -> None:
    """Print the steps and shapes of a sweep: to standard error before it runs, to standard output
    if they are the result of a dry run."""
    model = next(iter(jobs.values())).model
    if as_json:
        shapes = {name: state_size_json(model.geometry, job.after) for name, job in jobs.items()}
        summary = {"output": output, "shapes": shapes, "steps": [asdict(step) for step in steps]}
        terminal.print_json(summary)
        return
    show = terminal.print_table if dry_run else terminal.print_table_to_stderr
    show(steps_table(f"sweep {model.name} -> {output}", steps))
    model_type = str(model.config.get("model_type"))
    geometries, refused = {}, {}
    for name, job in jobs.items():
        geometries[name] = job.after
        refused[name] = refusing_engines(model_type, Shape.from_geometry(job.after))
    show(shapes_table("Shapes to measure", model.geometry, geometries, refused))
    show_download(model)


def show_sweep(sweep: Sweep, output: str, *, as_json: bool) -> None:
    """Print the state's size and the metrics of every shape."""
    if as_json:
        terminal.print_json({"output": output, **asdict(sweep)})
        return
    metrics = [name for name in sweep.points[0].scores if _is_in_table(name)]
    columns = ("keys x values", "state", "in bfloat16", *metrics)
    table = terminal.new_table(f"{sweep.model}: quality against state", *columns, left=0)
    for point in sweep.points:
        cells = [_measurement_text(point.scores[name]) for name in metrics]
        shape = f"{point.keep} x {point.keep_values}"
        bfloat16_size = bytes_text(point.state_bytes / 2)
        table.add_row(shape, bytes_text(point.state_bytes), bfloat16_size, *cells)
    terminal.print_table(table)
    terminal.print_text(
        "state in float32, per sequence; bfloat16 is the engine's option and needs no cut (what it "
        "costs was not measured); intervals of 95%, paired with the original; plans, scores and "
        f"the picture are in {output}",
    )


def _is_in_table(metric: str) -> bool:
    """Whether `metric` has a column; the many settings of a recall task are only in the file."""
    return not metric.split()[-1].startswith("pairs_")


def _measurement_text(measurement: SweepScore) -> str:
    """The value, a share in percent, and half of the interval's width, which the original lacks."""
    scale, unit = (100, "%") if measurement.unit == "share" else (1, "")
    text = f"{scale * measurement.value:.3g}{unit}"
    if measurement.low is None or measurement.high is None:
        return text
    return f"{text} ±{scale * (measurement.high - measurement.low) / 2:.2g}"
