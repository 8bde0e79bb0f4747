"""The state of a sequence before and after a cut, as rows of a table."""

from ..geometry import Geometry
from ..maths.formatting import change_row, relative_change_text


def state_rows(before: Geometry, after: Geometry) -> list[tuple[str, ...]]:
    """The shape of a head's state, and the bytes of all in float32 and in bfloat16: name, before,
    after, and the change."""
    shapes = before.describe_against(after), after.describe_against(before)
    old, new = before.state_numel, after.state_numel
    return [
        ("state of a head, keys x values", *shapes, relative_change_text(old, new)),
        change_row("recurrent state per sequence, float32", 4 * old, 4 * new),
        change_row("the same in bfloat16 (an engine option)", 2 * old, 2 * new),
    ]
