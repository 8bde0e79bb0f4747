"""Whether a text to evaluate on is one that a cut was calibrated or trained on."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..artifacts.origin import SeenText, read_seen_texts
from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint
from ..storage.text import sequences
from .samples import Source

_QUICKLY_READ = 2**23  # tokens; the text of a longer training is known by its name alone
_MOST_TEXTS = 16  # that a cut's records may name: each is read, and they are not trusted

logger = logging.getLogger("statetrim")


def warn_of_seen_text(models: Mapping[str, Checkpoint], source: Source, tokenizer: Any) -> None:
    """Name the models that have seen some of the text to evaluate on, and what to skip."""
    if source.text is None:
        return
    asked = range(source.skip, source.skip + source.text_tokens)
    seen = {
        name: _seen_until(model, source.text, tokenizer, asked) for name, model in models.items()
    }
    if any(seen.values()):
        logger.warning(
            "warning: %s was calibrated or trained on the start of %s; to measure on new text, use "
            "--skip %d",
            " and ".join(name for name, end in seen.items() if end),
            source.text,
            max(seen.values()),
        )


def _seen_until(model: Checkpoint, text: str | Path, tokenizer: Any, asked: range) -> int:
    """Tokens of the text that the model has seen; 0 if none of them is asked for."""
    known = [*dict.fromkeys(read_seen_texts(model))][:_MOST_TEXTS]
    near = {one for one in known if one.end > asked.start and one.skip < asked.stop}
    same = {one for one in known if near and _same(one, text, tokenizer)}
    return max(one.end for one in same) if same & near else 0


def _same(seen: SeenText, text: str | Path, tokenizer: Any) -> bool:
    """By the tokens themselves: a file may have been moved, and another may have its name."""
    tokens = seen.count * seen.length
    if seen.skip + tokens > _QUICKLY_READ:
        return seen.text == str(text)
    try:
        found = sequences(text, tokenizer, tokens=tokens, length=seen.length, skip=seen.skip)
    except StatetrimError:  # too short to be that text
        return False
    return bool(found.lineage["digest"] == seen.digest)
