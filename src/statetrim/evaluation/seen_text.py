"""Whether a text to evaluate on is one that a cut was calibrated or trained on."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..artifacts.origin import SeenText, read_seen_texts
from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint
from ..storage.text import read_sequences
from .samples import SampleSource

_MAX_TOKENS_READ = 2**23  # tokens; the text of a longer training is known by its name alone
_MAX_TEXTS = 16  # that a cut's records may name: each is read, and they are not trusted

logger = logging.getLogger("statetrim")


def warn_of_seen_text(
    models: Mapping[str, Checkpoint], source: SampleSource, tokenizer: Any
) -> None:
    """Name the models that have seen some of the text to evaluate on, and what to skip."""
    if source.text is None:
        return
    evaluated = range(source.skip, source.skip + source.text_tokens)
    seen = {
        name: _seen_until(model, source.text, tokenizer, evaluated)
        for name, model in models.items()
    }
    if any(seen.values()):
        logger.warning(
            "warning: %s was calibrated or trained on the start of %s; to measure on new text, use "
            "--skip %d",
            " and ".join(name for name, end in seen.items() if end),
            source.text,
            max(seen.values()),
        )


def _seen_until(model: Checkpoint, text: str | Path, tokenizer: Any, evaluated: range) -> int:
    """Tokens of the text that the model has seen; 0 if none of them is asked for."""
    records = [*dict.fromkeys(read_seen_texts(model))][:_MAX_TEXTS]
    overlapping = {
        record
        for record in records
        if record.end > evaluated.start and record.skip < evaluated.stop
    }
    matching = {
        record for record in records if overlapping and _is_same_text(record, text, tokenizer)
    }
    return max(record.end for record in matching) if matching & overlapping else 0


def _is_same_text(record: SeenText, text: str | Path, tokenizer: Any) -> bool:
    """By the tokens themselves: a file may have been moved, and another may have its name."""
    tokens = record.count * record.length
    if record.skip + tokens > _MAX_TOKENS_READ:
        return record.text == str(text)
    try:
        text_sequences = read_sequences(
            text, tokenizer, tokens=tokens, length=record.length, skip=record.skip
        )
    except StatetrimError:  # too short to be that text
        return False
    return bool(text_sequences.lineage["digest"] == record.digest)
