"""Effective rank of the state."""

from collections.abc import Iterator

from .. import rank_pictures
from ..commands import command_arguments, missing
from ..document import Block, Picture, Table, Text
from ..findings import Findings

TITLE = "Effective rank of the state"


def blocks(findings: Findings) -> Iterator[Block]:
    """Mean rank in use, its pictures, and a table by layer.

    Spectra are of the head with the highest rank; an analysis without that head has none.
    """
    analysis = findings.analysis
    if analysis is None:
        tokens = min(command_arguments(findings).tokens, 2**14)
        yield missing(
            findings,
            "The rank of the state was not measured.",
            f"statetrim analyze {{cut}} --baseline {{model}} --text {{text}} --tokens {tokens} "
            "--length 512 -o analysis.json",
        )
        return
    analyses = {"the original" if findings.analyzes_original else "this model": analysis}
    if analysis.baseline:
        analyses = {"before": analysis.baseline, "after": analysis}
    layer, head = rank_pictures.fullest_head(analysis)
    shares, comparable = [], {}
    for name, shown in analyses.items():
        mean = float(shown.mean_utilization.nanmean())
        shares.append(f"{name} {100 * mean:.1f}% of {shown.max_rank}")
        if layer in shown.layers and head < shown.geometry.num_v_heads:
            comparable[name] = shown
    yield Text(
        f"A state of d keys could have rank d; its effective rank says how many directions it "
        f"really uses. Mean use: {', '.join(shares)}. A narrower state reaches a higher share with "
        f"less in it."
    )
    for sheet in (
        rank_pictures.utilization_curves(analyses),
        rank_pictures.spectra(comparable, layer, head),
        rank_pictures.heat_map(analyses),
    ):
        for panel in sheet.panels:
            yield Picture(panel, f"{panel.title}.")
        yield Text(sheet.caption)
    table = analysis.table()
    caption = (
        "Rank in use by layer, with a bar per head; κ is the condition number, median head; "
        "filters: mean |cosine|, of queries, of keys"
    )
    yield Table(table.header, table.rows, caption, folded=True)
