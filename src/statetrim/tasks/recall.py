"""Multi-query associative recall: key-value pairs, then every key again, as plain text rarely asks.

The evaluation draws with small seeds. Sequences for calibration and training have larger ones, so
that none of them is ever evaluated.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..storage.text import Sequences

PAIR_COUNTS = (4, 8, 16, 32, 63, 127)  # that are evaluated
PAIRS = 63  # per generated sequence, unless the vocabulary has fewer keys
FIRST_SEED = 2**31  # evaluated sequences have smaller seeds
MAX_ROWS_AT_ONCE = 1024  # drawing a row takes memory for a quarter of the vocabulary


def associations(
    vocabulary: int, pairs: int, rows: int, *, length: int = 0, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Multi-query associative recall: token ids [rows, time] and key positions [pairs].

    Keys are distinct tokens of the second quarter of the vocabulary, values of the third. Pairs
    `k v k v ...` come once, then all again in another order; the model is to predict the values
    after these later keys, whose positions are returned. With `length` above 4 * pairs, tokens of
    the last quarter fill the gap between the halves.
    """
    quarter = vocabulary // 4
    generator = torch.Generator().manual_seed(seed)

    def distinct() -> Tensor:
        return torch.rand(rows, quarter, generator=generator).topk(pairs, dim=-1).indices

    pair = torch.stack([quarter + distinct(), 2 * quarter + distinct()], -1)
    order = torch.rand(rows, pairs, generator=generator).argsort(-1)
    repeated = pair.gather(1, order.unsqueeze(-1).expand(-1, -1, 2))
    gap = max(0, length - 4 * pairs)
    filler = 3 * quarter + torch.randint(quarter, (rows, gap), generator=generator)
    ids = torch.cat([pair.flatten(1), filler, repeated.flatten(1)], 1)
    return ids, 2 * pairs + gap + 2 * torch.arange(pairs)


def recalled_share(ids: Tensor, positions: Tensor, logits: Tensor) -> Tensor:
    """Share of each row's values that are the top prediction, float64 [rows]; `logits` [rows,
    pairs, vocabulary] are those at `positions`."""
    return (logits.argmax(-1) == ids[:, positions + 1].to(logits.device)).double().mean(-1).cpu()


def recall_sequences(
    tokenizer: Any,
    tokens: int,
    seed: int = 0,
    *,
    length: int | None = None,
    use: str = "calibration",
) -> Sequences:
    """Multi-query associative recall over the tokenizer's plain tokens; at most `tokens` in all.
    The later keys, after which a value must be recalled, are the `answer_positions`.

    Every `use` draws other sequences. With `length`, a row has this many tokens: as many recall
    patterns as fit, one after the other, then random tokens.
    """
    plain = plain_tokens(tokenizer)
    if len(plain) < 4:
        raise StatetrimError(f"{len(plain)} plain tokens are too few to make recall sequences")
    pairs = max(1, min(PAIRS, len(plain) // 4, (length or tokens) // 4))
    pattern_length = 4 * pairs
    length = length or pattern_length
    if length < pattern_length:
        raise StatetrimError(f"{length} tokens do not fill one recall sequence of {pattern_length}")
    if tokens < length:
        raise StatetrimError(f"{tokens} tokens do not fill one recall sequence of {length}")
    rows, patterns = tokens // length, length // pattern_length
    indices, positions = _draw_associations(len(plain), pairs, rows * patterns, f"{use} {seed}")
    generator = torch.Generator().manual_seed(derive_seed(f"{use} {seed} rest"))
    filled = patterns * pattern_length
    filler = torch.randint(len(plain), (rows, length - filled), generator=generator)
    ids = torch.cat([plain[indices].reshape(rows, filled), plain[filler]], 1)
    pattern_starts = pattern_length * torch.arange(patterns).unsqueeze(1)
    ids = ids.to(torch.int32)
    lineage = {
        "generated": "recall",
        "pairs": pairs,
        "seed": seed,
        "count": rows,
        "length": length,
        "digest": hashlib.sha256(ids.numpy().tobytes()).hexdigest(),
    }
    return Sequences(ids, lineage, (pattern_starts + positions).flatten())


def _draw_associations(vocabulary: int, pairs: int, rows: int, name: str) -> tuple[Tensor, Tensor]:
    """Token ids [rows, 4 * pairs] and key positions [pairs], as `associations` returns them, drawn
    in batches of `MAX_ROWS_AT_ONCE` rows; a batch's seed comes from `name` and its first row."""
    chunks = list[Tensor]()
    for start in range(0, rows, MAX_ROWS_AT_ONCE):
        count, seed = min(MAX_ROWS_AT_ONCE, rows - start), derive_seed(f"{name} {start}")
        ids, positions = associations(vocabulary, pairs, count, seed=seed)
        chunks.append(ids)
    return torch.cat(chunks), positions


def derive_seed(name: str) -> int:
    """A seed from the hash of `name`, from `FIRST_SEED` to below 2**32. torch uses the last 32 bits
    of a seed, so a larger one could equal that of an evaluated sequence."""
    drawn = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    return FIRST_SEED + drawn % FIRST_SEED


def plain_tokens(tokenizer: Any) -> Tensor:
    """Ids [n] of the tokenizer's tokens, without special and added ones."""
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    return torch.tensor([i for i in range(len(tokenizer)) if i not in special])
