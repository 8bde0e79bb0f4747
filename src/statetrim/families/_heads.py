"""What claims of whole heads have in common."""

from collections.abc import Iterable, Sequence

from ..geometry import Axis, ChannelRows, row_indices


def head_rows_from_channels(
    channel_rows: Sequence[ChannelRows], *other_rows: list[ChannelRows]
) -> list[ChannelRows]:
    """Where channels lie head by head, their heads lie; a shared norm stays, it has none."""
    head_rows = [entry for entry in channel_rows if entry.role != "shared_norm"]
    return head_rows + [entry for group in other_rows for entry in group]


def per_head_rows(tensors: Iterable[str], heads: int, axis: Axis = "value") -> list[ChannelRows]:
    """Tensors with one row, or one number, for every head; which of them there are, varies."""
    table = row_indices(heads, 1)
    return [ChannelRows(name, "gate", table, heads, axis=axis, optional=True) for name in tensors]
