"""What a person sees of `analyze`."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

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
    found, baseline = analysis.table(), analysis.baseline
    *rows, means = found.rows
    table = Table(title=found.title, title_justify="left", show_footer=True)
    for name, mean in zip(found.header, means, strict=True):
        table.add_column(
            name, mean, justify="left" if name == "heads" else "right", no_wrap=name == "heads"
        )
    for row in rows:
        table.add_row(*row)
    terminal.show(table)
    data, was = analysis.lineage["data"], f", before {baseline.max_rank}" if baseline else ""
    stored = analysis.lineage.get("state_dtype")
    for line in (
        f"used: effective rank of a state, of the largest possible rank ({analysis.max_rank}{was});",
        f"  mean over {data['count']} x {data['length']} tokens without the first "
        f"{analysis.burn_in}; heads: one bar each",
        *([f"states are stored in {stored}, as an engine would"] if stored else []),
        "κ: condition number, median head; filters: mean |cosine|, of queries, of keys",
        f"written to {where}" + (f", and {len(figures)} pictures" if figures else ""),
    ):
        terminal.say(line)
