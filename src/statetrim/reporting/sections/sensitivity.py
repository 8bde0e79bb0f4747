"""Losses when one layer alone is pruned, and which layers carry recall."""

from collections.abc import Iterator

from ...artifacts.sensitivity import variant_text
from ..commands import missing
from ..document import Block, Picture, Table, Text
from ..findings import Findings
from ..sensitivity_pictures import sensitivity_sheet

TITLE = "Which layer carries what"


def blocks(findings: Findings) -> Iterator[Block]:
    """Pictures by layer, and a table of every layer and width."""
    sensitivity = findings.sensitivity
    if sensitivity is None:
        yield missing(
            findings,
            "Layers were not cut one by one, so it is not known which one carries recall.",
            "statetrim analyze {model} --sensitivity --text {text} -o sensitivity.json",
        )
        return
    yield Text(sensitivity.sentence)
    sheet = sensitivity_sheet(sensitivity)
    for panel in sheet.panels:
        yield Picture(panel, f"{panel.title}.")
    yield Text(sheet.caption)
    rows = []
    for variant in sensitivity.variants:
        for layer in sensitivity.layers:
            layer_cut = sensitivity.find(layer, *variant)
            nll, drop = sensitivity.nll_increase(layer_cut), sensitivity.recall_drop(layer_cut)
            nll_text, drop_text = f"{nll.estimate:+.4f} ± {nll.margin:.4f}", ""
            if drop is not None:
                drop_text = f"{100 * drop.estimate:.1f} ± {100 * drop.margin:.1f}"
            errors = [f"{100 * error:.1f}%" for _, error in sorted(layer_cut.error.items())]
            kept = variant_text(sensitivity, variant)
            rows.append((str(layer), kept, nll_text, drop_text, *errors))
    yield Table(
        ("layer", "kept", "NLL", "recall lost", "error, random", "error, recall", "error, text"),
        rows,
        caption="Every layer and width in numbers; recall in points, NLL in nats",
        folded=True,
    )
