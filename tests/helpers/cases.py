"""Tables of cases, in tests/data/cases: one per line, in JSON."""

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "data" / "cases"


def load_cases(name: str) -> Any:
    """What a test is parametrized by: a list of rows, or a mapping from names to values."""
    return json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
