"""Training data of recovery: text, and generated recall sequences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..maths.units import parse_token_count
from ..runtime.corpus import Corpus, as_corpus
from ..runtime.loading import load_tokenizer
from ..storage.checkpoint import Checkpoint
from ..storage.text import Sequences, documents
from ..tasks.recall import recall_sequences
from .options import RecoverOptions

Batch = tuple[Tensor, Tensor]
"""Token ids, int64 [rows, length], and which rows are recall sequences, bool [rows]."""
HELD_OUT_TOKENS, MAX_HELD_OUT_ROWS = 2**13, 32


@dataclass(frozen=True, eq=False)
class RecallRows:
    """Which of the training rows are recall sequences, and recall sequences that are held out."""

    is_recall: Tensor  # bool [training rows]
    answer_positions: Tensor  # int64 [n]: positions whose next token is an answer
    held_out: Tensor  # int32 [held-out rows, length]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Token ids that fill all batches, so that every row has the same weight."""

    ids: Tensor  # int32 [rows, length]
    lineage: dict[str, Any]
    recall: RecallRows | None = None

    def batches(self, size: int) -> list[Batch]:
        """All rows in order, `size` at a time; the last batch may be smaller."""
        is_recall = torch.zeros(len(self.ids), dtype=torch.bool)
        if self.recall is not None:
            is_recall = self.recall.is_recall
        id_batches = torch.split(self.ids.long(), size)
        return list(zip(id_batches, torch.split(is_recall, size), strict=True))


def load_training_rows(
    student: Checkpoint,
    teacher: Checkpoint | None,
    text: str | Path | Corpus | Sequences,
    options: RecoverOptions,
) -> TrainingRows:
    """Tokenize `text`, and mix it with recall sequences as `options.recall` says; tokens that do
    not fill a batch are left out. Ready `Sequences` are taken as they are."""
    batch_size, length, recall_share = options.batch_size, options.length, options.recall
    if isinstance(text, Sequences):
        if recall_share:
            raise StatetrimError("recall is mixed with a text; give a text, not token ids")
        steps = len(text.ids) // batch_size
        if not steps:
            raise StatetrimError(f"{len(text.ids)} sequences do not fill a batch of {batch_size}")
        return TrainingRows(text.ids[: steps * batch_size], text.lineage)
    tokens = parse_token_count(options.tokens)
    steps = tokens // (batch_size * length)
    if not steps:
        raise StatetrimError(
            f"{tokens} tokens do not fill a batch of {batch_size} sequences of {length} tokens; "
            f"ask for more tokens, or smaller or shorter batches"
        )
    corpus = as_corpus(text, student)
    for model in (student, teacher):
        if model is not None and model is not corpus.model:
            sample = next(documents(corpus.text), "")[:10_000]
            if load_tokenizer(model)(sample)["input_ids"] != corpus.tokenizer(sample)["input_ids"]:
                raise StatetrimError("teacher and student have different tokenizers")
    counts = (torch.arange(steps * batch_size + 1, dtype=torch.float64) * recall_share).floor()
    is_recall = counts.diff() > 0  # at even distances
    text_rows, recall_rows = int((~is_recall).sum()), int(is_recall.sum())
    text_sequences = corpus.read(tokens=text_rows * length, length=length, skip=options.skip)
    if not recall_rows:
        return TrainingRows(text_sequences.ids, text_sequences.lineage)
    held_out_rows = min(MAX_HELD_OUT_ROWS, max(1, HELD_OUT_TOKENS // length))
    trained = recall_sequences(
        corpus.tokenizer, recall_rows * length, options.seed, length=length, use="recovery"
    )
    held_out = recall_sequences(
        corpus.tokenizer, held_out_rows * length, options.seed, length=length, use="held out"
    )
    assert trained.answer_positions is not None
    ids = torch.empty(len(is_recall), length, dtype=torch.int32)
    ids[~is_recall], ids[is_recall] = text_sequences.ids, trained.ids
    recall = RecallRows(is_recall, trained.answer_positions, held_out.ids)
    return TrainingRows(ids, text_sequences.lineage | {"recall": trained.lineage}, recall)
