"""Effective rank of the state."""

from collections.abc import Iterator

from ...artifacts.analysis import Analysis
from ...maths.formatting import percent_text
from .. import rank_pictures
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings
from ..names import names

TITLE = "Effective rank of the state"


def blocks(found: Findings) -> Iterator[Block]:
    analysis = found.analysis
    if analysis is None:
        words = names(found)
        yield Missing(
            "The rank of the state was not measured.",
            [
                f"statetrim analyze {words.small} --baseline {words.model} --text {words.text} "
                f"--tokens {min(words.tokens, 2**14)} --length 512 -o analysis.json"
            ],
        )
        return
    parts = {"before": analysis.baseline} if analysis.baseline else {}
    looked: dict[str, Analysis] = {**parts, "after" if parts else "this model": analysis}
    means = {name: float(part.mean_utilization.nanmean()) for name, part in looked.items()}
    shares = ", ".join(
        f"{name} {100 * mean:.1f}% of {looked[name].max_rank}" for name, mean in means.items()
    )
    yield Text(
        f"A state of d keys could have rank d; its effective rank says how many directions it "
        f"really uses. Mean use: {shares}. A narrower state reaches a higher share with less in it."
    )
    yield from _pictures(looked)
    yield Table(
        ("layer", *looked, "κ keys", "κ queries"),
        [
            (
                str(layer),
                *(
                    percent_text(float(part.mean_utilization[row].nanmean()))
                    for part in looked.values()
                ),
                f"{float(one.key_condition.nanmedian()):,.0f}",
                f"{float(one.query_condition.nanmedian()):,.0f}",
            )
            for row, (layer, one) in enumerate(analysis.layers.items())
            if all(row < len(part.layers) for part in looked.values())
        ],
        caption="Rank in use by layer; κ is the condition number, median head",
        folded=True,
    )


def _pictures(looked: dict[str, Analysis]) -> Iterator[Block]:
    layer, head = rank_pictures.fullest_head(list(looked.values())[-1])
    comparable = {
        name: part
        for name, part in looked.items()
        if layer in part.layers and head < part.geometry.num_v_heads
    }
    for sheet in (
        rank_pictures.utilization_curves(looked),
        rank_pictures.spectra(comparable, layer, head),
        rank_pictures.heat_map(looked),
    ):
        for panel in sheet.panels:
            yield Picture(panel, f"{panel.title}.")
        yield Text(sheet.caption)
