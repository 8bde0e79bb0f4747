"""Rearranges padded and packed batches for a recurrence: one sequence per row, padding last."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SequenceRows:
    """Positions of each row's tokens in a batch [batch, time, ...] viewed as [batch * time, ...].

    `index` [rows, length] points into the flattened batch; `valid` [rows, length] is False past the
    end of a row. A recurrence that ignores invalid tokens gives the same outputs and states as each
    sequence alone, wherever the padding was.
    """

    index: Tensor
    valid: Tensor

    @property
    def lengths(self) -> Tensor:
        """Number of valid tokens per row, [rows]."""
        return self.valid.sum(-1)

    def gather(self, x: Tensor) -> Tensor:
        """[batch, time, channels] -> [rows, length, channels]; arbitrary past the end of a row."""
        return x.flatten(0, 1)[self.index]

    def scatter(self, rows: Tensor, batch: int, time: int) -> Tensor:
        """[rows, length, channels] -> [batch, time, channels], zero at padding."""
        flat = rows.new_zeros(batch * time, rows.shape[-1])
        flat = flat.index_put((self.index[self.valid],), rows[self.valid])
        return flat.view(batch, time, -1)

    @classmethod
    def from_mask(cls, mask: Tensor) -> SequenceRows:
        """From an attention mask [batch, time] with 0 at padding."""
        real = mask.bool()
        order = real.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)
        start = torch.arange(mask.shape[0], device=mask.device).unsqueeze(-1) * mask.shape[1]
        return cls(start + order, real.gather(-1, order))

    @classmethod
    def from_cu_seqlens(cls, cu_seqlens: Tensor) -> SequenceRows:
        """From the boundaries [sequences + 1] of sequences concatenated in one row."""
        starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
        steps = torch.arange(int(lengths.max()), device=cu_seqlens.device)
        valid = steps < lengths.unsqueeze(-1)
        return cls(torch.where(valid, starts.unsqueeze(-1) + steps, 0), valid)


def sequence_rows(
    attention_mask: Tensor | None, cu_seqlens: Tensor | None, time: int
) -> SequenceRows | None:
    """The rows of a batch, or None without padding and packing. Of a mask that covers cached tokens
    as well, the last `time` columns are used. Raises ValueError unless a mask is [batch, time]."""
    if cu_seqlens is not None:
        return SequenceRows.from_cu_seqlens(cu_seqlens)
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(
            "attention_mask must be [batch, time] with 0 for padding, got shape "
            f"{list(attention_mask.shape)}."
        )
    recent = attention_mask[:, -time:]
    return None if bool(recent.all()) else SequenceRows.from_mask(recent)
