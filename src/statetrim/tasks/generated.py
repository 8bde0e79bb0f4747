"""Sequences that are made, not read: they test what plain text rarely needs.

Three kinds: recall (pairs of tokens, then every key again), random tokens, and passages of a text
that are repeated. Seeds are other ones than those of the tested sequences, so that no sequence that
chooses, fits or trains anything is ever tested.
"""

import hashlib
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..storage.text import Sequences, read_sequences
from .recall import associations

Kind = Literal["recall", "random", "echo"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PAIRS = 63  # of a recall sequence, where the vocabulary has as many keys
FIRST_SEED = 2**31  # tested sequences take smaller ones
MAX_ROWS_AT_ONCE = 1024  # sequences: drawing one takes memory for a quarter of the vocabulary


def recall_sequences(
    tokenizer: Any,
    tokens: int,
    seed: int = 0,
    *,
    length: int | None = None,
    use: str = "calibration",
) -> Sequences:
    """Multi-query associative recall, over the tokenizer's plain tokens; others for another `use`.

    With `length`, rows of so many tokens: as many such sequences as fit, one after the other, and
    random tokens where none fits any more.
    """
    plain = plain_tokens(tokenizer)
    if len(plain) < 4:
        raise StatetrimError(f"{len(plain)} plain tokens are too few to make recall sequences")
    pairs = max(1, min(PAIRS, len(plain) // 4, (length or tokens) // 4))
    pattern_length = 4 * pairs
    length = length or pattern_length
    if length < pattern_length:
        raise StatetrimError(f"{length} tokens do not fill one recall sequence of {pattern_length}")
    rows, patterns_per_row = _row_count("recall", tokens, length), length // pattern_length
    indices, answer_positions = _draw_associations(
        len(plain), pairs, rows * patterns_per_row, f"{use} {seed}"
    )
    generator = torch.Generator().manual_seed(derive_seed(f"{use} {seed} rest"))
    filler = torch.randint(
        len(plain), (rows, length - patterns_per_row * pattern_length), generator=generator
    )
    ids = torch.cat(
        [plain[indices].reshape(rows, patterns_per_row * pattern_length), plain[filler]], 1
    )
    answerable = torch.cat(
        [answer_positions + pattern_length * number for number in range(patterns_per_row)]
    )
    lineage = {"generated": "recall", "pairs": pairs, "seed": seed}
    return _make_sequences(ids, answerable, lineage)


def _draw_associations(vocabulary: int, pairs: int, rows: int, name: str) -> tuple[Tensor, Tensor]:
    """Some at a time, each time by a seed of its own."""
    chunks = [
        associations(
            vocabulary,
            pairs,
            min(MAX_ROWS_AT_ONCE, rows - start),
            seed=derive_seed(f"{name} {start}"),
        )
        for start in range(0, rows, MAX_ROWS_AT_ONCE)
    ]
    return torch.cat([ids for ids, _ in chunks]), chunks[0][1]


def derive_seed(name: str) -> int:
    """From `FIRST_SEED` to below 2**32: of a larger seed torch's generator would use the last 32
    bits only, and could come to one that is tested."""
    drawn = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    return FIRST_SEED + drawn % FIRST_SEED


def random_sequences(tokenizer: Any, tokens: int, length: int, seed: int = 0) -> Sequences:
    """Tokens drawn uniformly; nothing in them can be answered, but every key is new."""
    plain = plain_tokens(tokenizer)
    generator = torch.Generator().manual_seed(derive_seed(f"random {seed}"))
    shape = (_row_count("random", tokens, length), length)
    drawn = torch.randint(len(plain), shape, generator=generator)
    return _make_sequences(plain[drawn], None, {"generated": "random", "seed": seed})


def echo_sequences(text: Any, tokenizer: Any, tokens: int, length: int, skip: int = 0) -> Sequences:
    """Passages of a text, each read twice; the second reading can be answered from the first."""
    half = length // 2
    _row_count("echo", tokens, 2 * half)
    passages = read_sequences(text, tokenizer, tokens=tokens // 2, length=half, skip=skip)
    lineage = {"generated": "echo", "of": passages.lineage}
    return _make_sequences(
        torch.cat([passages.ids, passages.ids], 1), torch.arange(half, 2 * half - 1), lineage
    )


def plain_tokens(tokenizer: Any) -> Tensor:
    """Ids [n] of the tokens that stand for text: no special ones, none beyond the tokenizer."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return torch.tensor([i for i in range(len(tokenizer)) if i not in special])


def _row_count(kind: Kind, tokens: int, length: int) -> int:
    if length < 2 or tokens < length:
        raise StatetrimError(f"{tokens} tokens do not fill one {kind} sequence of {length}")
    return tokens // length


def _make_sequences(
    ids: Tensor, answer_positions: Tensor | None, lineage: dict[str, Any]
) -> Sequences:
    ids = ids.to(torch.int32)
    digest = hashlib.sha256(ids.numpy().tobytes()).hexdigest()
    count, length = ids.shape
    return Sequences(
        ids, lineage | {"count": count, "length": length, "digest": digest}, answer_positions
    )
