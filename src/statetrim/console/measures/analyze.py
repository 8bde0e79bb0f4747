"""What a person sees of `analyze`."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from torch import Tensor

from ...artifacts.analysis import Analysis
from .. import terminal


def show_analysis(
    analysis: Analysis, where: str, figures: Sequence[Path], *, as_json: bool
) -> None:
    """One row a layer; narrow enough for a terminal of 80 columns."""
    if as_json:
        terminal.show_json(
            {
                "analysis": where,
                "figures": [str(path) for path in figures],
                **analysis.summary(),
                **({"baseline": analysis.baseline.summary()} if analysis.baseline else {}),
            }
        )
        return
    baseline, mean = analysis.baseline, analysis.mean_utilization
    before = None if baseline is None else baseline.mean_utilization
    top = float(mean.nan_to_num().max())
    table = Table(title="How full the state is", title_justify="left", show_footer=True)
    table.add_column("layer", "mean", justify="right")
    if before is not None:
        table.add_column("before", _percent(before), justify="right")
    table.add_column("used", _percent(mean), justify="right")
    table.add_column("heads", no_wrap=True)
    table.add_column("range", _range(mean), justify="right")
    for name in ("κ keys", "κ queries", "filters"):
        table.add_column(name, justify="right")
    for row, (number, layer) in enumerate(analysis.layers.items()):
        table.add_row(
            str(number),
            *([] if before is None else [_percent(before[row])]),
            _percent(mean[row]),
            _bars(mean[row], top),
            _range(mean[row]),
            f"{float(layer.key_condition.nanmedian()):,.0f}",
            f"{float(layer.query_condition.nanmedian()):,.0f}",
            _similarities(layer.query_similarity, layer.key_similarity),
        )
    terminal.out.print(table)
    data, was = analysis.lineage["data"], f", before {baseline.widest}" if baseline else ""
    for line in (
        f"used: effective rank of a state over the largest it can have ({analysis.widest}{was}),",
        f"  mean of {data['count']} x {data['length']} tokens but the first {analysis.burn_in}; "
        "heads: one bar each",
        "κ: condition number, median head; filters: mean |cosine|, of queries, of keys",
        f"written to {where}" + (f", and {len(figures)} pictures" if figures else ""),
    ):
        terminal.say(line)


def _percent(values: Tensor) -> str:
    return f"{100 * float(values.nanmean()):.1f}%"


def _range(values: Tensor) -> str:
    known = values[values.isfinite()]
    return f"{100 * float(known.min()):.1f}-{100 * float(known.max()):.1f}%" if len(known) else ""


def _bars(values: Tensor, top: float, most: int = 16) -> str:
    """One bar a head, as high as it is full beside the fullest head of the model."""
    levels = "▁▂▃▄▅▆▇█"
    heights = (values.nan_to_num() / (top or 1.0) * (len(levels) - 1)).round().long().tolist()
    return "".join(levels[height] for height in heights[:most]) + (
        "…" if len(heights) > most else ""
    )


def _similarities(query: Tensor | None, key: Tensor | None) -> str:
    if query is None or key is None:
        return "none"
    return f"{float(query.mean()):.2f}, {float(key.mean()):.2f}"
