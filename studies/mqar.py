"""Multi-query associative recall (MQAR): key-value pairs, then every key again, to be completed.

Keys come from the second quarter of the vocabulary and values from the third (ids 1024-2047 and
2048-3071 of 4,096), so that text and recall can share one tokenizer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def batch(
    vocab: int, pairs: int, rows: int, generator: torch.Generator, filler: int = 0
) -> tuple[Tensor, Tensor]:
    """`ids` [rows, 4 * pairs + filler], `k v k v ...`, then `filler` tokens of the last quarter,
    then all pairs in another order; and the positions [pairs] of the later keys, whose next token
    the model must predict."""
    quarter = vocab // 4

    def distinct() -> Tensor:
        noise = torch.rand(rows, quarter, generator=generator)
        return noise.topk(pairs, dim=-1).indices

    pair = torch.stack([quarter + distinct(), 2 * quarter + distinct()], -1)
    order = torch.rand(rows, pairs, generator=generator).argsort(-1)
    again = pair.gather(1, order.unsqueeze(-1).expand(-1, -1, 2))
    positions = 2 * pairs + filler + 2 * torch.arange(pairs)
    if filler == 0:
        return torch.cat([pair, again], 1).flatten(1), positions
    between = 3 * quarter + torch.randint(quarter, (rows, filler), generator=generator)
    return torch.cat([pair.flatten(1), between, again.flatten(1)], 1), positions


def two_hop_batch(
    vocab: int, pairs: int, rows: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """`ids` [rows, 6 * pairs]: `m v m v ...`, then `k m k m ...`, then `k v k v ...`, each in a new
    order; and the positions [pairs] of the last keys, whose values no layer can look up alone.
    The tokens between, m, are of the last quarter of the vocabulary."""
    quarter = vocab // 4

    def distinct(start: int) -> Tensor:
        return start + torch.rand(rows, quarter, generator=generator).topk(pairs, dim=-1).indices

    def shuffled(first: Tensor, second: Tensor) -> Tensor:
        order = torch.rand(rows, pairs, generator=generator).argsort(-1)
        return torch.stack([first.gather(1, order), second.gather(1, order)], -1).flatten(1)

    keys, between, values = distinct(quarter), distinct(3 * quarter), distinct(2 * quarter)
    lists = shuffled(between, values), shuffled(keys, between), shuffled(keys, values)
    return torch.cat(lists, 1), 4 * pairs + 2 * torch.arange(pairs)


def query_logits(model: Any, ids: Tensor, query_positions: Tensor) -> Tensor:
    """Logits [rows, pairs, vocabulary] at `query_positions`."""
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits: Tensor = model.lm_head(hidden[:, query_positions])
    return logits


@torch.no_grad()
def accuracies(model: Any, pairs: int, rows: int, seed: int, hops: int = 1) -> Tensor:
    """Float64 [rows]: the share of a sequence's values that the model ranks first."""
    generator = torch.Generator().manual_seed(seed)
    draw = two_hop_batch if hops == 2 else batch
    ids, query_positions = draw(model.config.vocab_size, pairs, rows, generator)
    best = query_logits(model, ids, query_positions).argmax(-1)
    return (best == ids[:, query_positions + 1]).double().mean(1)


def accuracy(model: Any, pairs: int, rows: int = 128, seed: int = 1234, hops: int = 1) -> float:
    """Share of values that the model ranks first."""
    return float(accuracies(model.eval(), pairs, rows, seed, hops).mean())
