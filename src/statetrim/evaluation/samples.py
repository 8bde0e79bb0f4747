"""Task -> its samples: rows for lm-eval, or token ids; warns of text that a model has seen."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.steps import DataSource, read_seen_texts
from ..errors import StatetrimError
from ..runtime.corpus import Corpus
from ..storage.checkpoint import Checkpoint
from ..tasks import Row, Task, prepare_rows, recall, wikitext_pages, write_definition
from . import harness

DEFAULT_SAMPLES = 128  # at most, of a task without lm-eval
FIRST_LOOK = 32  # samples, after which they are doubled until the verdict is decided
AGREEMENT_LENGTH = 512


@dataclass(frozen=True, eq=False)
class Samples:
    """A task with its samples: a directory for lm-eval, or token ids; MQAR generates its own."""

    task: Task
    digest: str
    directory: Path | None = None
    ids: Tensor | None = None  # int32 [sequences, length]


def looks(most: int, *, all_at_once: bool) -> list[range]:
    """The samples that are taken one after the other: FIRST_LOOK, then as many again, up to
    `most`."""
    stops = [most if all_at_once else min(FIRST_LOOK, most)]
    while stops[-1] < most:
        stops.append(min(2 * stops[-1], most))
    return [range(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


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
        return (self.limit or DEFAULT_SAMPLES) * AGREEMENT_LENGTH


def prepare_samples(task: Task, source: SampleSource, tokenizer: Any, scratch: Path) -> Samples:
    """A task with its samples. Rows from `data` or the hub are written to `scratch`/NAME with their
    definition; a stock task without `data` uses lm-eval's own directory. Raises StatetrimError if a
    source that is read holds no samples, or if lm-eval is needed and not installed."""
    data, limit = source.data, source.limit
    if task.kind == "mqar":
        return Samples(task, f"seeded, loads {recall.PAIR_COUNTS}, {limit or DEFAULT_SAMPLES} rows")
    if task.kind in ("agreement", "text"):
        if source.text is not None and task.kind == "text":
            tokens, skip = source.text_tokens, source.skip
            ids = source.text.read(tokens=tokens, length=AGREEMENT_LENGTH, skip=skip).ids
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
    """The first `limit` (default: DEFAULT_SAMPLES) sequences of the text, or as many as it has; the
    end-of-text token separates documents."""
    if data is None:
        raise StatetrimError(f"{task.name} needs --data, a directory with {task.files}")
    ids: list[int] = []
    rows = limit or DEFAULT_SAMPLES
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
    """Text -> the [start, end) characters of its tokens; refuses a slow tokenizer."""

    def spans(text: str) -> list[tuple[int, int]]:
        if not tokenizer.is_fast:
            raise StatetrimError("recall tasks need a tokenizer.json, to locate its tokens")
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return [(int(start), int(end)) for start, end in encoding["offset_mapping"]]

    return spans


_MAX_TOKENS_READ = 2**23  # of a longer text only the name is compared
_MAX_TEXTS = 16  # per model: each text in its records is read, and the records are not trusted

logger = logging.getLogger("statetrim")


def warn_of_seen_text(models: Mapping[str, Checkpoint], source: SampleSource) -> None:
    """Log which models have seen some of the evaluated text, and how many tokens to skip."""
    if source.text is None:
        return
    first = source.text.start + source.skip
    evaluated = range(first, first + source.text_tokens)
    names, most_seen = [], 0
    for name, model in models.items():
        tokens_seen = _seen_until(model, source.text.whole, evaluated)
        if tokens_seen:
            names.append(name)
            most_seen = max(most_seen, tokens_seen)
    if names:
        logger.warning(
            "warning: %s was calibrated or trained on the start of %s; to measure on new text, use "
            "--skip %d",
            " and ".join(names),
            source.text.text,
            most_seen,
        )


def _seen_until(model: Checkpoint, corpus: Corpus, evaluated: range) -> int:
    """Where the part of a text ends that the model has seen; 0 if none of `evaluated`."""
    records = [*dict.fromkeys(read_seen_texts(model))][:_MAX_TEXTS]
    overlapping = [r for r in records if r.end > evaluated.start and r.source.skip < evaluated.stop]
    if not overlapping:
        return 0  # without reading any text
    end, overlaps = 0, False
    for record in records:
        if _holds_recorded_tokens(record.source, corpus):
            end = max(end, record.end)
            overlaps = overlaps or record in overlapping
    return end if overlaps else 0


def _holds_recorded_tokens(record: DataSource, corpus: Corpus) -> bool:
    """Whether a text source has, where `record` says, the tokens whose digest the record holds. The
    file may have been moved, and another may have its name. False if it is too short."""
    if record.skip + record.tokens > _MAX_TOKENS_READ:
        return record.text == str(corpus.text)
    try:
        text_sequences = corpus.read(tokens=record.tokens, length=record.length, skip=record.skip)
    except StatetrimError:  # the text is shorter than what the record describes
        return False
    return bool(text_sequences.lineage["digest"] == record.digest)
