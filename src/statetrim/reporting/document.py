"""A report as blocks of plain text; `html` and `markdown` escape and write them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar

from .drawing import Drawing, Raster

NUMERIC = re.compile(
    r"none|\d+ x \d+|[-+]?[\d.,]+(e[-+]?\d+)?( ?(%|MiB|KiB|points|nats))?( \([\d.]+x\))?"
)
WORDS_CELL_LENGTH = 24  # characters from which a column is one of words


def as_sentence(text: str) -> str:
    """With a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


@dataclass(frozen=True)
class Text:
    """A paragraph; `tone` "note" is a remark of what may mislead."""

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
    """What a section would show, and the commands that bring it. A section of nothing else is not
    shown by itself."""

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
    folded: bool = False  # a long table next to a picture opens when asked for

    @property
    def column_kinds(self) -> list[str]:
        """Of each column whether it holds numbers, words, or something short."""
        return [self._column_kind(number) for number in range(len(self.header))]

    def _column_kind(self, number: int) -> str:
        cells = [row[number] for row in self.rows if row[number]]
        if cells and all(NUMERIC.fullmatch(cell) for cell in cells):
            return "number"
        return "words" if max(map(len, cells), default=0) > WORDS_CELL_LENGTH else ""


@dataclass(frozen=True)
class Picture:
    """A drawing; Markdown has the caption only."""

    kind: ClassVar[str] = "picture"
    drawing: Drawing
    caption: str


@dataclass(frozen=True)
class Gallery:
    """Small images with a name each, below one caption."""

    kind: ClassVar[str] = "gallery"
    images: Sequence[tuple[str, Raster]]
    caption: str


Block = Text | Command | Missing | Table | Picture | Gallery


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def is_empty(self) -> bool:
        return all(isinstance(block, Missing) for block in self.blocks)

    @property
    def block_groups(self) -> list[tuple[bool, list[Block]]]:
        """Runs of blocks; pictures that follow one another stand side by side."""
        return [
            (pictures, list(blocks))
            for pictures, blocks in groupby(self.blocks, key=lambda b: isinstance(b, Picture))
        ]


@dataclass(frozen=True)
class Fact:
    """One of the few things that decide, in a line or two, and what to type."""

    name: str
    lines: Sequence[str]
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Summary:
    """What stands on the first screen: an answer, why, what to know, and the facts."""

    answer: str
    tone: str  # good, fair, bad or unknown
    reason: str
    facts: Sequence[Fact]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Document:
    """A title, an answer, then sections; those without content are named together at the end."""

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
