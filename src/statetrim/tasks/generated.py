"""Sequences that are made, not read: they ask a model for what plain text seldom asks.

Three kinds: recall (pairs of tokens, then every key again), random tokens, and passages of a text
that are repeated. Seeds begin where those of the tested sequences end, so that no sequence that
chooses, fits or trains anything is ever tested.
"""

import hashlib
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..storage.text import Sequences, sequences
from .recall import associations

Kind = Literal["recall", "random", "echo"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PAIRS = 63  # of a recall sequence, where the vocabulary has as many keys
FIRST_SEED = 2**32  # tested sequences take smaller ones


def recall_sequences(tokenizer: Any, tokens: int, seed: int = 0) -> Sequences:
    """Multi-query associative recall, over the tokenizer's plain tokens."""
    plain = plain_tokens(tokenizer)
    pairs = min(PAIRS, len(plain) // 4, tokens // 4)
    if len(plain) < 4:
        raise StatetrimError(f"{len(plain)} plain tokens are too few to make recall sequences")
    rows = _rows("recall", tokens, 4 * pairs)
    places, asked = associations(len(plain), pairs, rows, seed=FIRST_SEED + seed)
    about = {"generated": "recall", "pairs": pairs, "seed": seed}
    return _sequences(plain[places], asked, about)


def random_sequences(tokenizer: Any, tokens: int, length: int, seed: int = 0) -> Sequences:
    """Tokens drawn uniformly; nothing in them can be answered, but every key is new."""
    plain = plain_tokens(tokenizer)
    generator = torch.Generator().manual_seed(FIRST_SEED + seed)
    shape = (_rows("random", tokens, length), length)
    drawn = torch.randint(len(plain), shape, generator=generator)
    return _sequences(plain[drawn], None, {"generated": "random", "seed": seed})


def echo_sequences(text: Any, tokenizer: Any, tokens: int, length: int, skip: int = 0) -> Sequences:
    """Passages of a text, each read twice; the second reading can be answered from the first."""
    half = length // 2
    _rows("echo", tokens, 2 * half)
    once = sequences(text, tokenizer, tokens=tokens // 2, length=half, skip=skip)
    about = {"generated": "echo", "of": once.lineage}
    return _sequences(torch.cat([once.ids, once.ids], 1), torch.arange(half, 2 * half - 1), about)


def plain_tokens(tokenizer: Any) -> Tensor:
    """Ids [n] of the tokens that stand for text: no special ones, none beyond the tokenizer."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return torch.tensor([i for i in range(len(tokenizer)) if i not in special])


def _rows(kind: Kind, tokens: int, length: int) -> int:
    if length < 2 or tokens < length:
        raise StatetrimError(f"{tokens} tokens do not fill one {kind} sequence of {length}")
    return tokens // length


def _sequences(ids: Tensor, asked: Tensor | None, about: dict[str, Any]) -> Sequences:
    ids = ids.to(torch.int32)
    digest = hashlib.sha256(ids.numpy().tobytes()).hexdigest()
    count, length = ids.shape
    return Sequences(ids, about | {"count": count, "length": length, "digest": digest}, asked)
