"""Quality against the size of the state, where several widths were tried."""

from collections.abc import Iterator

from ..charts import Point, Series, line_chart
from ..document import Block, Picture, Table
from ..findings import Findings
from .wording import missing, number, size


def widths(found: Findings) -> Iterator[Block]:
    """A picture for each metric, and all of it in a table."""
    if found.sweep is None:
        yield from missing(
            "Only one width was looked at. A sweep calibrates once and shows what widths cost.",
            "statetrim trim MODEL --sweep 96,64,48,32 --text text.jsonl -o SWEEP",
        )
        return
    metrics: dict[str, dict[str, list[Point]]] = {}
    rows = []
    for point in found.sweep.points:
        if not number(point.state_bytes):
            continue
        state, method = float(point.state_bytes), str(point.method)
        label = "original" if method == "none" else method
        for name, measured in point.scores.items():
            if not number(measured.value):
                continue
            bounds = (measured.low, measured.high)
            low, high = bounds if all(map(number, bounds)) else (None, None)
            tried = metrics.setdefault(f"{name}, {measured.unit}", {}).setdefault(label, [])
            tried.append(Point(state / 2**20, measured.value, low, high))
            rows.append(
                (
                    f"{point.keep} x {point.keep_values}",
                    label,
                    size(int(state)),
                    name,
                    f"{measured.value:.4g}",
                    "" if low is None or high is None else f"{low:.4g} to {high:.4g}",
                )
            )
    for name, by_method in metrics.items():
        series = [
            Series(method, sorted(found_points, key=lambda p: p.x))
            for method, found_points in by_method.items()
        ]
        chart = line_chart(
            series,
            f"{name} against the state of one sequence",
            x="state of a sequence, MiB",
            y=name,
            marks=True,
        )
        yield Picture(chart, f"{name} by the size of the state; bars are 95% intervals.")
    yield Table(("keys x values", "method", "state", "metric", "value", "95% interval"), rows)
