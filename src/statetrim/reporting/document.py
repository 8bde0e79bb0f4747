"""A report as blocks of plain text, which `html` and `markdown` escape and render."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

from .drawing import Drawing, Raster

NUMERIC = re.compile(
    r"none|\d+ x \d+|[-+]?[\d.,]+(e[-+]?\d+)?( ?(%|MiB|KiB|points|nats))?( \([\d.]+x\))?"
)
WORDS_CELL_LENGTH = 24  # a column with a longer cell is a column of words


def as_sentence(text: str) -> str:
    """`text` with a capital first letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


@dataclass(frozen=True)
class Text:
    """A paragraph; the `tone` "note" marks a caveat."""

    kind: ClassVar[str] = "text"
    text: str
    tone: str = ""


@dataclass(frozen=True)
class Command:
    """Lines to type in a shell."""

    kind: ClassVar[str] = "command"
    lines: Sequence[str]


@dataclass(frozen=True)
class Missing:
    """What a section lacks, and the commands that measure it.

    Sections that hold nothing else are listed together at the end of the report.
    """

    kind: ClassVar[str] = "missing"
    text: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """Rows of plain text below a header; the first column names the row."""

    kind: ClassVar[str] = "table"
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: bool = False  # collapsed in HTML until the reader opens it

    @property
    def column_kinds(self) -> list[str]:
        """For each column "number", "words" (long cells), or "" (short cells)."""
        return [self._column_kind(number) for number in range(len(self.header))]

    def _column_kind(self, number: int) -> str:
        """Kind "number" if there are cells with text and all of them are numeric; else "words" if
        one is longer than WORDS_CELL_LENGTH; else ""."""
        cells = [row[number] for row in self.rows if row[number]]
        if cells and all(NUMERIC.fullmatch(cell) for cell in cells):
            return "number"
        return "words" if max(map(len, cells), default=0) > WORDS_CELL_LENGTH else ""


@dataclass(frozen=True)
class Picture:
    """A drawing with a caption; Markdown shows only the caption."""

    kind: ClassVar[str] = "picture"
    drawing: Drawing
    caption: str


@dataclass(frozen=True)
class Gallery:
    """Small named images under one caption."""

    kind: ClassVar[str] = "gallery"
    images: Sequence[tuple[str, Raster]]
    caption: str


Block = Text | Command | Missing | Table | Picture | Gallery


@dataclass(frozen=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        """The title as an HTML id."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def is_empty(self) -> bool:
        """Whether nothing but `Missing` blocks would be shown."""
        return all(isinstance(block, Missing) for block in self.blocks)

    @property
    def block_groups(self) -> list[tuple[bool, list[Block]]]:
        """Runs of (whether pictures, blocks); the pictures of a run are laid out side by side."""
        runs = groupby(self.blocks, key=lambda block: isinstance(block, Picture))
        return [(are_pictures, list(blocks)) for are_pictures, blocks in runs]


@dataclass(frozen=True)
class Fact:
    """One of the few facts that decide: a line or two, and shell commands."""

    name: str
    lines: Sequence[str]
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Summary:
    """The first screen: the answer, its reason, notes of what may mislead, and facts."""

    answer: str
    tone: str  # good, fair, bad or unknown
    reason: str
    facts: Sequence[Fact]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Document:
    """A title, a summary, then sections; empty ones are listed together at the end."""

    title: str
    summary: Summary
    sections: Sequence[Section]
    footer: str

    @property
    def shown(self) -> list[Section]:
        return [section for section in self.sections if not section.is_empty]

    @property
    def absent(self) -> list[Section]:
        return [section for section in self.sections if section.is_empty]
