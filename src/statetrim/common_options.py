"""Options that several commands have, and parsers of what is typed for them."""

import json
from collections.abc import Iterable
from typing import Any

from .errors import StatetrimError
from .options import option, options
from .progress import ShowProgress

TEXT_HELP = "A .txt, .jsonl or .parquet file, a folder of them, or a hub dataset."
SKIP_HELP = "Tokens to skip at the start of the text."
BATCH_SIZE_HELP = "Sequences per forward pass."
METHODS_HELP = "Selection methods; each chooses keys, values or heads. l1,readout_l1 need no text."


@options
class ProgressOptions:
    """How progress is shown."""

    progress: ShowProgress = option(
        default=True, help="Show a progress bar, or call a function.", flags=(), in_record=False
    )


def parse_names(text: str) -> list[str]:
    """Split a list at its commas; empty names are dropped."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_named_values(pairs: Iterable[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; what is not valid JSON is text, and the last of equal names counts."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise StatetrimError(f"an option is NAME=VALUE, such as score=q, not {pair[:40]!r}")
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError):
            values[name] = text
    return values
