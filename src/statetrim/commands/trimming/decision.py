"""What a person sees of a comparison of shapes."""

from ...artifacts.decision import Decision, ShapeScore
from ...maths.formatting import bytes_text
from .. import terminal


def show_decision(decision: Decision) -> None:
    """Print the size and the metrics of every shape that was measured, and why one was chosen."""
    metrics = [name for name in decision.points[0].scores if _is_in_table(name)]
    title, columns = f"{decision.model}: quality against state", ("keys x values", "state")
    table = terminal.new_table(title, *columns, "in bfloat16", *metrics, left=0)
    for point in decision.points:
        cells = [_measurement_text(point.scores[name]) for name in metrics]
        size, bfloat16_size = bytes_text(point.state_bytes), bytes_text(point.state_bytes / 2)
        table.add_row(str(point), size, bfloat16_size, *cells)
    terminal.print_table(table)
    terminal.print_text(
        "state in float32, per sequence; bfloat16 is the engine's option and needs no cut (what it "
        "costs was not measured); intervals of 95%, paired with the original"
    )
    terminal.print_text(f"chosen: {decision.sentence}")


def _is_in_table(metric: str) -> bool:
    """Whether `metric` has a column; the many settings of a recall task are only in the file."""
    return not metric.split()[-1].startswith("pairs_")


def _measurement_text(measurement: ShapeScore) -> str:
    """The value, a share in percent, and half of the interval's width, which the original lacks."""
    scale, unit = (100, "%") if measurement.unit == "share" else (1, "")
    text = f"{scale * measurement.value:.3g}{unit}"
    if measurement.low is None or measurement.high is None:
        return text
    return f"{text} ±{scale * (measurement.high - measurement.low) / 2:.2g}"
