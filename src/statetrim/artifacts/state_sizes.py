"""The state of a sequence before and after a cut: rows of a table, and a sentence."""

from ..geometry import Geometry
from ..maths.formatting import change_row, relative_change_text


def state_rows(before: Geometry, after: Geometry) -> list[tuple[str, ...]]:
    """The shape of a head's state, and the bytes of all in float32 and in bfloat16: name, before,
    after, and the change."""
    shapes = before.describe_against(after), after.describe_against(before)
    old, new = before.state_numel, after.state_numel
    return [
        ("state of a head, keys x values", *shapes, relative_change_text(old, new)),
        change_row("state per sequence, float32", 4 * old, 4 * new),
        change_row("the same in bfloat16", 2 * old, 2 * new),
    ]


def state_text(before: Geometry, after: Geometry, *, with_bfloat16: bool = True) -> str:
    """The bytes of a sequence's state before and after a cut, for people."""
    _, (_, *float32, change), (_, *bfloat16, _) = state_rows(before, after)
    text = f"state per sequence: {' → '.join(float32)} in float32"
    if with_bfloat16:
        text += f", {' → '.join(bfloat16)} in bfloat16"
    return f"{text} ({change or 'no change'})"
