"""What each layer costs when it alone is cut, and where recall lives."""

from collections.abc import Iterator

from ..commands import command_arguments
from ..document import Block, Missing, Picture, Table, Text
from ..findings import Findings
from ..sensitivity_pictures import CAPTION, pictures, variant_text

TITLE = "Which layer carries what"


def blocks(findings: Findings) -> Iterator[Block]:
    sensitivity = findings.sensitivity
    if sensitivity is None:
        arguments = command_arguments(findings)
        yield Missing(
            "Layers were not cut one by one, so it is not known which one carries recall.",
            [
                f"statetrim analyze {arguments.model} --sensitivity --text {arguments.text} "
                f"-o sensitivity.json"
            ],
        )
        return
    yield Text(sensitivity.sentence)
    for drawing in pictures(sensitivity):
        yield Picture(drawing, f"{drawing.title}.")
    yield Text(CAPTION)
    rows = []
    for variant in sensitivity.variants:
        for layer in sensitivity.layers:
            layer_cut = sensitivity.find(layer, *variant)
            nll, drop = sensitivity.nll_increase(layer_cut), sensitivity.recall_drop(layer_cut)
            rows.append(
                (
                    str(layer),
                    variant_text(sensitivity, variant),
                    f"{nll.estimate:+.4f} ± {nll.margin:.4f}",
                    "" if drop is None else f"{100 * drop.estimate:.1f} ± {100 * drop.margin:.1f}",
                    *(
                        f"{100 * layer_cut.error[source]:.1f}%"
                        for source in sorted(layer_cut.error)
                    ),
                )
            )
    yield Table(
        ("layer", "kept", "NLL", "recall lost", "error, random", "error, recall", "error, text"),
        rows,
        caption="Every layer and width in numbers; recall in points, NLL in nats",
        folded=True,
    )
