"""Pictures of rank analyses, and of models whose states are emptied."""

from collections.abc import Mapping

from ..artifacts.analysis import Analysis
from ..artifacts.memory import Memory
from ..maths.formatting import evenly_spaced, percent_text
from .charts import ORIGINAL, Point, Series, line_chart
from .document import Picture

MAX_CURVE_POINTS = 300


def utilization_picture(analyses: Mapping[str, Analysis]) -> Picture:
    """Rank in use by token position; a line per analysis, of several first the original's."""
    series = list[Series]()
    for label, analysis in analyses.items():
        positions, shares = analysis.positions.tolist(), analysis.utilization_by_position.tolist()
        points = [Point(x, y) for x, y in zip(positions, shares, strict=True)]
        name = f"{label} (largest rank {analysis.max_rank})"
        style = ORIGINAL if len(analyses) > 1 and not series else ""
        series.append(Series(name, evenly_spaced(points, MAX_CURVE_POINTS), style))
    title = "Share of the largest rank in use, by token"
    chart = line_chart(
        series, title, x="token", y="rank in use", format_y=percent_text, from_zero=True
    )
    return Picture(
        chart,
        f"{title}. How to read it: effective rank of the state, as a share of the largest rank it "
        "could have, after each token; mean over layers, heads and sequences. Lines with the same "
        "largest rank compare directly; a narrower state reaches a higher share with less in it. "
        "The rise at the left is forced: a state has no higher rank than tokens seen.",
    )


def memory_picture(memory: Memory) -> Picture:
    """The loss by tokens read, of the model as it is and with its states emptied."""
    lines = {"as it is": memory.original}
    lines |= {f"emptied every {x.every:,}": x.samples for x in memory.horizons}
    series = list[Series]()
    for name, samples in lines.items():
        values = zip(memory.positions, samples.nll_by_position, strict=False)
        points = [Point(position, value) for position, value in values]
        series.append(Series(name, points, "" if series else ORIGINAL))
    return Picture(
        line_chart(series, "NLL by position", x="tokens read", y="nats", log_x=True),
        "NLL by position. How to read it: all states are emptied at intervals (1: after every "
        "token); where that costs nothing, older tokens do not matter to them.",
    )
