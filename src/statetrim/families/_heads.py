"""What claims of whole heads have in common."""

from collections.abc import Iterable, Sequence

from ..geometry import Axis, ChannelRows, row_indices


def head_claims(channels: Sequence[ChannelRows], *others: list[ChannelRows]) -> list[ChannelRows]:
    """Where channels lie head by head, their heads lie; a shared norm stays, it has none."""
    claims = [claim for claim in channels if claim.role != "shared_norm"]
    return claims + [claim for more in others for claim in more]


def one_each(tensors: Iterable[str], heads: int, axis: Axis = "value") -> list[ChannelRows]:
    """Tensors with one row, or one number, for every head; which of them there are, varies."""
    table = row_indices(heads, 1)
    return [ChannelRows(name, "gate", table, heads, axis=axis, optional=True) for name in tensors]
