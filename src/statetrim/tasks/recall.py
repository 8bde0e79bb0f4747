"""Multi-query associative recall: key-value pairs, then every key again."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # listing tasks does not import torch
    from torch import Tensor

PAIR_COUNTS = (4, 8, 16, 32, 63, 127)


def associations(
    vocabulary: int, pairs: int, rows: int, *, length: int = 0, seed: int = 0
) -> "tuple[Tensor, Tensor]":
    """Multi-query associative recall: token ids [rows, time] and key positions [pairs].

    Keys are distinct tokens of the second quarter of the vocabulary, values of the third. Pairs
    `k v k v ...` come once, then all again in another order; the model is to predict the values
    after these later keys, whose positions are returned. With `length` above 4 * pairs, tokens of
    the last quarter fill the gap between the halves.
    """
    import torch

    quarter = vocabulary // 4
    generator = torch.Generator().manual_seed(seed)

    def distinct() -> "Tensor":
        return torch.rand(rows, quarter, generator=generator).topk(pairs, dim=-1).indices

    pair = torch.stack([quarter + distinct(), 2 * quarter + distinct()], -1)
    order = torch.rand(rows, pairs, generator=generator).argsort(-1)
    repeated = pair.gather(1, order.unsqueeze(-1).expand(-1, -1, 2))
    gap = max(0, length - 4 * pairs)
    filler = 3 * quarter + torch.randint(quarter, (rows, gap), generator=generator)
    ids = torch.cat([pair.flatten(1), filler, repeated.flatten(1)], 1)
    return ids, 2 * pairs + gap + 2 * torch.arange(pairs)


def recalled_share(ids: "Tensor", positions: "Tensor", logits: "Tensor") -> "Tensor":
    """Share of each row's values that are the top prediction, float64 [rows]; `logits` [rows,
    pairs, vocabulary] are those at `positions`."""
    return (logits.argmax(-1) == ids[:, positions + 1].to(logits.device)).double().mean(-1).cpu()
