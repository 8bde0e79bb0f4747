"""Effective rank of the state."""

from collections.abc import Iterator

from ...artifacts.analysis import Analysis
from ...maths.formatting import percent_text
from .. import rank_pictures
from ..commands import command_arguments
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings

TITLE = "Effective rank of the state"


def blocks(findings: Findings) -> Iterator[Block]:
    analysis = findings.analysis
    if analysis is None:
        arguments = command_arguments(findings)
        yield Missing(
            "The rank of the state was not measured.",
            [
                f"statetrim analyze {arguments.cut} --baseline {arguments.model} --text {arguments.text} "
                f"--tokens {min(arguments.tokens, 2**14)} --length 512 -o analysis.json"
            ],
        )
        return
    baseline = {"before": analysis.baseline} if analysis.baseline else {}
    analyses: dict[str, Analysis] = {**baseline, "after" if baseline else "this model": analysis}
    means = {name: float(entry.mean_utilization.nanmean()) for name, entry in analyses.items()}
    shares = ", ".join(
        f"{name} {100 * mean:.1f}% of {analyses[name].max_rank}" for name, mean in means.items()
    )
    yield Text(
        f"A state of d keys could have rank d; its effective rank says how many directions it "
        f"really uses. Mean use: {shares}. A narrower state reaches a higher share with less in it."
    )
    yield from _pictures(analyses)
    yield Table(
        ("layer", *analyses, "κ keys", "κ queries"),
        [
            (
                str(layer),
                *(
                    percent_text(float(entry.mean_utilization[row].nanmean()))
                    for entry in analyses.values()
                ),
                f"{float(layer_analysis.key_condition.nanmedian()):,.0f}",
                f"{float(layer_analysis.query_condition.nanmedian()):,.0f}",
            )
            for row, (layer, layer_analysis) in enumerate(analysis.layers.items())
            if all(row < len(entry.layers) for entry in analyses.values())
        ],
        caption="Rank in use by layer; κ is the condition number, median head",
        folded=True,
    )


def _pictures(analyses: dict[str, Analysis]) -> Iterator[Block]:
    layer, head = rank_pictures.fullest_head(list(analyses.values())[-1])
    comparable = {
        name: entry
        for name, entry in analyses.items()
        if layer in entry.layers and head < entry.geometry.num_v_heads
    }
    for sheet in (
        rank_pictures.utilization_curves(analyses),
        rank_pictures.spectra(comparable, layer, head),
        rank_pictures.heat_map(analyses),
    ):
        for panel in sheet.panels:
            yield Picture(panel, f"{panel.title}.")
        yield Text(sheet.caption)
