"""Console output of `analyze`."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from ...artifacts.analysis import Analysis
from .. import terminal


def show_analysis(
    analysis: Analysis, output: str, figures: Sequence[Path], *, as_json: bool
) -> None:
    """Print a row per layer, narrow enough for a terminal of 80 columns."""
    if as_json:
        terminal.print_json(
            {
                "analysis": output,
                "figures": [str(path) for path in figures],
                **analysis.summary(),
                **({"baseline": analysis.baseline.summary()} if analysis.baseline else {}),
            }
        )
        return
    layer_table, baseline = analysis.table(), analysis.baseline
    *rows, means = layer_table.rows
    table = Table(title=layer_table.title, title_justify="left", show_footer=True)
    for name, mean in zip(layer_table.header, means, strict=True):
        table.add_column(
            name, mean, justify="left" if name == "heads" else "right", no_wrap=name == "heads"
        )
    for row in rows:
        table.add_row(*row)
    terminal.print_table(table)
    data, before = analysis.lineage["data"], f", before {baseline.max_rank}" if baseline else ""
    state_dtype = analysis.lineage.get("state_dtype")
    for line in (
        "used: effective rank of a state, of the largest possible rank "
        f"({analysis.max_rank}{before});",
        f"  mean over {data['count']} x {data['length']} tokens without the first "
        f"{analysis.burn_in}; heads: one bar each",
        *([f"states are stored in {state_dtype}, as an engine would"] if state_dtype else []),
        "κ: condition number, median head; filters: mean |cosine|, of queries, of keys",
        f"written to {output}" + (f", and {len(figures)} pictures" if figures else ""),
    ):
        terminal.print_text(line)
