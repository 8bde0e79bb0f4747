"""Task -> its samples: rows written for lm-eval, or token ids."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..runtime.corpus import Corpus
from ..tasks import Row, Task, prepare_rows, recall, wikitext_pages, write_definition
from . import harness

MQAR_ROWS = 64
AGREEMENT_ROWS, AGREEMENT_LENGTH = 128, 512


@dataclass(frozen=True, eq=False)
class Samples:
    """A task with its samples: a directory for lm-eval, or token ids; MQAR generates its own."""

    task: Task
    digest: str
    directory: Path | None = None
    ids: Tensor | None = None  # int32 [sequences, length]


@dataclass(frozen=True)
class SampleSource:
    """Where samples come from, and how many are taken; `skip` is in tokens of `text`."""

    data: Path | None
    text: Corpus | None
    skip: int
    limit: int | None

    @property
    def text_tokens(self) -> int:
        """How many tokens of `text` are evaluated."""
        return (self.limit or AGREEMENT_ROWS) * AGREEMENT_LENGTH


def prepare_samples(task: Task, source: SampleSource, tokenizer: Any, scratch: Path) -> Samples:
    """A task with its samples: token ids for text and agreement, else a directory for lm-eval.

    Rows from `data` or the hub are written to `scratch`/NAME with their definition; a stock task
    without `data` uses lm-eval's own directory, and MQAR, which is generated later, has neither.
    Raises StatetrimError if a source that is read holds no samples, or if lm-eval is needed and
    not installed.
    """
    data, limit = source.data, source.limit
    if task.kind == "mqar":
        return Samples(task, f"seeded, loads {recall.PAIR_COUNTS}, {limit or MQAR_ROWS} rows")
    if task.kind in ("agreement", "text"):
        if task.kind == "text":
            assert source.text is not None
            ids = source.text.read(
                tokens=source.text_tokens, length=AGREEMENT_LENGTH, skip=source.skip
            ).ids
        else:
            ids = _agreement_ids(task, data, tokenizer, limit)
        return Samples(task, hashlib.sha256(ids.numpy().tobytes()).hexdigest(), ids=ids)
    stock = harness.stock_tasks_directory()
    if data is None and task.kind == "stock":
        return Samples(task, "hub", (stock / task.stock).parent)
    source_file = task.find_file(data) if data is not None else None
    rows: list[Row] = prepare_rows(task, source_file, _token_spans(tokenizer), limit)
    if not rows:
        raise StatetrimError(f"{source_file or task.hub} holds no rows for {task.name}")
    directory = scratch / task.name
    directory.mkdir()
    write_definition(task, rows, directory, stock)
    content = (directory / f"{task.name}.jsonl").read_bytes()
    return Samples(task, hashlib.sha256(content).hexdigest(), directory)


def _agreement_ids(task: Task, data: Path | None, tokenizer: Any, limit: int | None) -> Tensor:
    """The first `limit` (default: AGREEMENT_ROWS) sequences of the text, or as many as it has,
    int32 [sequences, AGREEMENT_LENGTH]; the end-of-text token separates documents. Raises
    StatetrimError without `data`, or if the text does not fill one sequence."""
    if data is None:
        raise StatetrimError(f"{task.name} needs --data, a directory with {task.files}")
    ids: list[int] = []
    rows = limit or AGREEMENT_ROWS
    for page in wikitext_pages(task.find_file(data)):
        ids += tokenizer(page, add_special_tokens=False)["input_ids"]
        ids += [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        if len(ids) >= rows * AGREEMENT_LENGTH:
            break
    rows = min(rows, len(ids) // AGREEMENT_LENGTH)
    if not rows:
        raise StatetrimError(f"{task.find_file(data)} is shorter than {AGREEMENT_LENGTH} tokens")
    flat = torch.tensor(ids[: rows * AGREEMENT_LENGTH], dtype=torch.int32)
    return flat.reshape(rows, AGREEMENT_LENGTH)


def _token_spans(tokenizer: Any) -> recall.Spans:
    """A function from a text to the [start, end) characters of each of its tokens. It raises
    StatetrimError if the tokenizer is not a fast one."""

    def spans(text: str) -> list[tuple[int, int]]:
        if not tokenizer.is_fast:
            raise StatetrimError("recall tasks need a tokenizer.json, to locate its tokens")
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [(int(start), int(end)) for start, end in encoding["offset_mapping"]]

    return spans
