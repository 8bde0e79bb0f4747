"""A table of text."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of text for people; cells may come from untrusted files."""

    title: str
    header: Sequence[str]  # empty: each row is a name and a value
    rows: Sequence[Sequence[str]]
