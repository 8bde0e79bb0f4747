"""A text as token ids: tokenized once, and divided into slices that cannot overlap."""

import copy
import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..maths.units import parse_token_count
from ..storage.checkpoint import Checkpoint
from ..storage.text import Sequences, documents
from .loading import load_tokenizer


class Corpus:
    """A text source by the tokenizer of `model`, read only as far as it is needed.

    `text` is a .txt, .jsonl (field `text`) or .parquet file, a directory of them, or the name of a
    hub dataset, which is streamed. A slice is a corpus too: it shares the tokens of the whole, and
    nothing beyond its end can be read from it.
    """

    def __init__(self, text: str | Path, model: Checkpoint) -> None:
        self.text, self.model = text, model
        self.start, self.size = 0, None  # type: int, int | None
        self._tokens = _Tokens(text, model)

    @property
    def tokenizer(self) -> Any:
        return self._tokens.tokenizer

    @property
    def stop(self) -> int:
        """Where a slice ends in the text."""
        assert self.size is not None
        return self.start + self.size

    def divide(self, *sizes: int) -> "list[Corpus]":
        """Consecutive slices of these `sizes` in tokens. Nothing is read yet."""
        slices, start = [], self.start
        for size in sizes:
            part = copy.copy(self)
            part.start, part.size = start, size
            slices.append(part)
            start += size
        return slices

    def count(self, most: int) -> int:
        """How many tokens there are, reading no more than `most`."""
        return self._tokens.read_until(self.start + most) - self.start

    def read(self, *, tokens: int | str, length: int = 512, skip: int | str = 0) -> Sequences:
        """The first `tokens` ("16k") after `skip`, packed into sequences of `length`; a remainder
        is left out. Documents are joined by the end-of-text token."""
        most, skipped = parse_token_count(tokens), parse_token_count(skip)
        if length < 2 or most < length:
            raise StatetrimError(f"{most} tokens do not fill one sequence of {length}")
        count = most // length
        if self.size is not None and skipped + count * length > self.size:
            raise StatetrimError(
                f"{skipped + count * length} tokens were asked of a slice of {self.text} that has "
                f"{self.size}"
            )
        first = self.start + skipped
        packed = self._tokens.between(first, first + count * length).reshape(count, length)
        lineage = {
            "text": str(self.text),
            "skip": first,
            "length": length,
            "count": count,
            "digest": hashlib.sha256(packed.numpy().tobytes()).hexdigest(),
        }
        return Sequences(packed, lineage)


def as_corpus(text: str | Path | Corpus, model: Checkpoint) -> Corpus:
    """A text by the tokenizer of `model`; a corpus stays as it is."""
    return text if isinstance(text, Corpus) else Corpus(text, model)


class _Tokens:
    """The tokens of a text source; each document is tokenized once, when it is first needed."""

    def __init__(self, text: str | Path, model: Checkpoint) -> None:
        self.text, self.model = text, model
        self.unread = documents(text)
        self.ids = torch.empty(0, dtype=torch.int32)

    @cached_property
    def tokenizer(self) -> Any:
        return load_tokenizer(self.model)

    def between(self, start: int, stop: int) -> Tensor:
        """int32 [stop - start]. Raises StatetrimError if the text has fewer than `stop` tokens."""
        available = self.read_until(stop)
        if available < stop:
            raise StatetrimError(
                f"{self.text} gives {available} tokens, fewer than the {stop} asked for; "
                f"ask for fewer tokens"
            )
        return self.ids[start:stop]

    def read_until(self, stop: int) -> int:
        """Tokenize documents until there are `stop` tokens; returns how many of these exist."""
        chunks, available = [self.ids], len(self.ids)
        while available < stop and (document := next(self.unread, None)) is not None:
            chunks.append(self._encode(document))
            available += len(chunks[-1])
        self.ids = torch.cat(chunks) if len(chunks) > 1 else self.ids
        return min(available, stop)

    def _encode(self, document: str) -> Tensor:
        """Token ids of a document, with the end-of-text token at its end if there is one."""
        end = self.tokenizer.eos_token_id
        ids = self.tokenizer(document, add_special_tokens=False)["input_ids"]
        ids = ids + ([] if end is None else [int(end)])
        if max(ids, default=0) >= 2**31:
            raise StatetrimError(f"the tokenizer gives token {max(ids)}, which no model has")
        return torch.tensor(ids, dtype=torch.int32)
