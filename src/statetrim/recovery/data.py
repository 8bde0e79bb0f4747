"""What recovery trains on: text, and generated recall sequences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..maths.units import parse_token_count
from ..runtime.loading import load_tokenizer
from ..storage.checkpoint import Checkpoint
from ..storage.text import Sequences, documents, sequences
from ..tasks.generated import recall_sequences
from .options import RecoverOptions

Batch = tuple[Tensor, Tensor]
HELD_OUT_TOKENS, MOST_HELD_OUT_ROWS = 2**13, 32


@dataclass(frozen=True, eq=False)
class RecallRows:
    """Which of the trained rows are recall sequences, and some that are not trained on."""

    made: Tensor  # bool [rows]
    asked: Tensor  # int64 [n]: where the next token of such a row can be known
    held_out: Tensor  # int32 [rows, length]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Whole batches of token ids; every step then weighs every row alike."""

    ids: Tensor  # int32 [rows, length]
    lineage: dict[str, Any]
    recall: RecallRows | None = None

    def batches(self, size: int) -> list[Batch]:
        """Ids, int64 [size, length], and which rows of them are recall sequences."""
        none = torch.zeros(len(self.ids), dtype=torch.bool)
        made = none if self.recall is None else self.recall.made
        parts = zip(torch.split(self.ids, size), torch.split(made, size), strict=True)
        return [(ids.long(), rows) for ids, rows in parts]


def training_rows(
    small: Checkpoint,
    teacher: Checkpoint | None,
    text: str | Path | Sequences,
    options: RecoverOptions,
) -> TrainingRows:
    batch_size, length, share = options.batch_size, options.length, options.recall
    if isinstance(text, Sequences):
        if share:
            raise StatetrimError("recall is mixed with a text; give a text, not token ids")
        steps = len(text.ids) // batch_size
        if not steps:
            raise StatetrimError(f"{len(text.ids)} sequences do not fill a batch of {batch_size}")
        return TrainingRows(text.ids[: steps * batch_size], text.lineage)
    tokens, skip = parse_token_count(options.tokens), parse_token_count(options.skip)
    steps = tokens // (batch_size * length)
    if not steps:
        raise StatetrimError(
            f"{tokens} tokens do not fill a batch of {batch_size} sequences of {length} tokens; "
            f"ask for more tokens, or smaller or shorter batches"
        )
    tokenizer = load_tokenizer(small)
    if teacher is not None and teacher is not small:
        sample = next(documents(text), "")[:10_000]
        if load_tokenizer(teacher)(sample)["input_ids"] != tokenizer(sample)["input_ids"]:
            raise StatetrimError("teacher and student have different tokenizers")
    made = _spread(steps * batch_size, share)
    read, count = int((~made).sum()), int(made.sum())
    found = sequences(text, tokenizer, tokens=read * length, length=length, skip=skip)
    if not count:
        return TrainingRows(found.ids, found.lineage)
    held = min(MOST_HELD_OUT_ROWS, max(1, HELD_OUT_TOKENS // length))
    trained, held_out = (
        recall_sequences(tokenizer, rows * length, options.seed, length=length, use=use)
        for rows, use in ((count, "recovery"), (held, "held out"))
    )
    assert trained.asked is not None
    ids = torch.empty(len(made), length, dtype=torch.int32)
    ids[~made], ids[made] = found.ids, trained.ids
    recall = RecallRows(made, trained.asked, held_out.ids)
    return TrainingRows(ids, found.lineage | {"recall": trained.lineage}, recall)


def _spread(rows: int, share: float) -> Tensor:
    """Bool [rows]: `share` of them, as evenly as can be, so that every batch has its part."""
    counts = (torch.arange(rows + 1, dtype=torch.float64) * share).floor()
    return counts.diff() > 0
