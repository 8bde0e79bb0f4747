"""The calibration sources that are compared: text, recall sequences, random and repeated text.

Seeds start at 10,000, so that no calibration sequence is one of the tested sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statetrim.runtime.corpus import Corpus
from statetrim.tasks.recall import associations

LENGTH = 256
PAIRS = 63


@dataclass(frozen=True, eq=False)
class Source:
    """Token ids [sequences, time]; positions [n] whose next token is predictable (None: all)."""

    ids: Tensor
    answer_positions: Tensor | None = None

    def batches(self, size: int = 8) -> list[Tensor]:
        return list(torch.split(self.ids.long(), size))


def make_source(kind: str, corpus: Corpus, vocabulary: int, tokens: int, seed: int) -> Source:
    """About `tokens` tokens of a kind; another seed gives other text and other sequences."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    if kind == "text":
        return Source(corpus.read(tokens=tokens, length=LENGTH, skip=seed * 2**17).ids)
    if kind == "echo":
        half = corpus.read(tokens=tokens // 2, length=LENGTH // 2, skip=seed * 2**17).ids
        return Source(torch.cat([half, half], 1), torch.arange(LENGTH // 2, LENGTH - 1))
    if kind == "random":
        return Source(torch.randint(vocabulary, (tokens // LENGTH, LENGTH), generator=generator))
    rows = tokens // (4 * PAIRS)
    if kind == "recall":
        return Source(*associations(vocabulary, PAIRS, rows, seed=10_000 + seed))
    if kind == "any":  # keys and values from the whole vocabulary
        drawn = torch.rand(rows, vocabulary, generator=generator).topk(2 * PAIRS, -1).indices
        pair = drawn.reshape(rows, PAIRS, 2)
        order = torch.rand(rows, PAIRS, generator=generator).argsort(-1)
        again = pair.gather(1, order.unsqueeze(-1).expand(-1, -1, 2))
        positions = 2 * PAIRS + 2 * torch.arange(PAIRS)
        return Source(torch.cat([pair, again], 1).flatten(1), positions)
    raise ValueError(kind)
