"""Warns if a model was calibrated or trained on the text that it is evaluated on."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..artifacts.origin import SeenText, read_seen_texts
from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint
from ..storage.text import read_sequences
from .samples import SampleSource

_MAX_TOKENS_READ = 2**23  # of a longer text only the name is compared
_MAX_TEXTS = 16  # per model: each text in its records is read, and the records are not trusted

logger = logging.getLogger("statetrim")


def warn_of_seen_text(
    models: Mapping[str, Checkpoint], source: SampleSource, tokenizer: Any
) -> None:
    """Log which models have seen some of the evaluated text, and how many tokens to skip."""
    if source.text is None:
        return
    evaluated = range(source.skip, source.skip + source.text_tokens)
    names, most_seen = [], 0
    for name, model in models.items():
        tokens_seen = _seen_until(model, source.text, tokenizer, evaluated)
        if tokens_seen:
            names.append(name)
            most_seen = max(most_seen, tokens_seen)
    if names:
        logger.warning(
            "warning: %s was calibrated or trained on the start of %s; to measure on new text, use "
            "--skip %d",
            " and ".join(names),
            source.text,
            most_seen,
        )


def _seen_until(model: Checkpoint, text: str | Path, tokenizer: Any, evaluated: range) -> int:
    """Where the part of `text` ends that the model has seen, in tokens; 0 if it has seen none of
    the `evaluated` tokens."""
    records = [*dict.fromkeys(read_seen_texts(model))][:_MAX_TEXTS]
    overlapping = [r for r in records if r.end > evaluated.start and r.skip < evaluated.stop]
    if not overlapping:
        return 0  # without reading any text
    end, overlaps = 0, False
    for record in records:
        if _holds_recorded_tokens(record, text, tokenizer):
            end = max(end, record.end)
            overlaps = overlaps or record in overlapping
    return end if overlaps else 0


def _holds_recorded_tokens(record: SeenText, text: str | Path, tokenizer: Any) -> bool:
    """Whether a text source has, where `record` says, the tokens whose digest the record holds.

    The file may have been moved, and another may have its name. False if the source is too short or
    cannot be read. If the recorded part ends beyond _MAX_TOKENS_READ tokens, only the names are
    compared.
    """
    tokens = record.count * record.length
    if record.skip + tokens > _MAX_TOKENS_READ:
        return record.text == str(text)
    try:
        text_sequences = read_sequences(
            text, tokenizer, tokens=tokens, length=record.length, skip=record.skip
        )
    except StatetrimError:  # `text` is shorter than what the record describes
        return False
    return bool(text_sequences.lineage["digest"] == record.digest)
