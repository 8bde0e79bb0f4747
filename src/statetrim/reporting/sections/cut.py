"""What the plan cuts, and which weights were quantised again."""

from collections.abc import Iterator

from ...artifacts.plan import PLAN_FILE
from ...storage.quantized.find import describe_schemes
from ..document import Block, Table, Text
from ..findings import Findings

MAX_LISTED_WEIGHTS = 64


def blocks(findings: Findings) -> Iterator[Block]:
    """How the cut's weights are stored, what was quantised again, and the plan's settings."""
    cut = findings.cut
    if cut.quantized:
        yield Text(
            f"Quantised weights of the cut: {describe_schemes(cut.quantized)}. Those that it did "
            f"not have to change are the original's, code by code."
        )
        errors = findings.prune.requantized if findings.prune else {}
        if errors:
            worst = sorted(errors.items(), key=lambda item: -item[1])[:MAX_LISTED_WEIGHTS]
            rows = [(name, f"{100 * error:.3g} %") for name, error in worst]
            caption = (
                f"{len(errors)} weights were quantised again for the cut; relative errors, the "
                f"largest first"
            )
            yield Table(("weight", "error"), rows, caption, folded=True)
    caption = f"The kept heads and channels are in {PLAN_FILE}"
    yield Table(("", "the plan"), findings.plan.table().rows, caption)
