"""Helpers for `Family.head_rows`: which rows of a tensor belong to which head."""

from collections.abc import Iterable, Sequence

from ..geometry import Axis, ChannelRows, row_indices


def head_rows_from_channels(
    channel_rows: Sequence[ChannelRows], *other_rows: list[ChannelRows]
) -> list[ChannelRows]:
    """Rows by head, from rows by channel (whose tables are [heads, channels]) and `other_rows`. A
    norm shared by all heads has no rows of a single head and is left out."""
    head_rows = [entry for entry in channel_rows if entry.role != "shared_norm"]
    for group in other_rows:
        head_rows += group
    return head_rows


def per_head_rows(tensors: Iterable[str], heads: int, axis: Axis = "value") -> list[ChannelRows]:
    """Rows of optional tensors that have one row, or one number, per head."""
    table = row_indices(heads, 1)
    return [ChannelRows(name, "gate", table, heads, axis=axis, optional=True) for name in tensors]
