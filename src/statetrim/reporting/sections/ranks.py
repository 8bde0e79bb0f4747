"""Effective rank of the state."""

from collections.abc import Iterator

from ...artifacts.analysis import Analysis
from ...maths.formatting import percent_text
from .. import rank_pictures
from ..commands import command_arguments, missing
from ..document import Block, Picture, Table, Text
from ..findings import Findings

TITLE = "Effective rank of the state"


def blocks(findings: Findings) -> Iterator[Block]:
    """Mean rank in use, its pictures, and a table by layer."""
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
    analyses = {"this model": analysis}
    if analysis.baseline:
        analyses = {"before": analysis.baseline, "after": analysis}
    shares = []
    for name, shown in analyses.items():
        mean = float(shown.mean_utilization.nanmean())
        shares.append(f"{name} {100 * mean:.1f}% of {shown.max_rank}")
    yield Text(
        f"A state of d keys could have rank d; its effective rank says how many directions it "
        f"really uses. Mean use: {', '.join(shares)}. A narrower state reaches a higher share with "
        f"less in it."
    )
    yield from _pictures(analyses)
    yield Table(
        ("layer", *analyses, "κ keys", "κ queries"),
        list(_layer_rows(analysis, list(analyses.values()))),
        caption="Rank in use by layer; κ is the condition number, median head",
        folded=True,
    )


def _layer_rows(analysis: Analysis, shown: list[Analysis]) -> Iterator[tuple[str, ...]]:
    """Layer, mean rank in use of each of `shown`, and condition numbers of `analysis`.

    Layers are matched by their order, as many as the shortest analysis has, and named as in
    `analysis`.
    """
    count = min(len(entry.layers) for entry in shown)
    for row, (layer, statistics) in enumerate(list(analysis.layers.items())[:count]):
        means = [float(entry.mean_utilization[row].nanmean()) for entry in shown]
        key_condition = float(statistics.key_condition.nanmedian())
        query_condition = float(statistics.query_condition.nanmedian())
        conditions = f"{key_condition:,.0f}", f"{query_condition:,.0f}"
        yield (str(layer), *map(percent_text, means), *conditions)


def _pictures(analyses: dict[str, Analysis]) -> Iterator[Block]:
    """Curves, spectra of the last analysis' head with the highest rank, and heat maps, each with
    its caption; analyses without that head have no spectrum."""
    layer, head = rank_pictures.fullest_head(list(analyses.values())[-1])
    comparable = {}
    for name, analysis in analyses.items():
        if layer in analysis.layers and head < analysis.geometry.num_v_heads:
            comparable[name] = analysis
    for sheet in (
        rank_pictures.utilization_curves(analyses),
        rank_pictures.spectra(comparable, layer, head),
        rank_pictures.heat_map(analyses),
    ):
        for panel in sheet.panels:
            yield Picture(panel, f"{panel.title}.")
        yield Text(sheet.caption)
