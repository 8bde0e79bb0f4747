"""A report as blocks of plain text, which the templates escape."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from .charts import Chart

NUMERIC = re.compile(
    r"none|\d+ x \d+|[-+]?[\d.,]+(e[-+]?\d+)?( ?(%|MiB|KiB|points|nats))?( \([\d.]+x\))?"
)
WORDS_CELL_LENGTH = 24  # a column with a longer cell is a column of words


def as_sentence(text: str) -> str:
    """`text` with a capital first letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


class Part:
    """A part of a page; templates choose by its kind, such as "text"."""

    @property
    def kind(self) -> str:
        return type(self).__name__.lower()


@dataclass(frozen=True)
class Text(Part):
    """A paragraph; the `tone` "note" marks a caveat."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Command(Part):
    """Lines to type in a shell."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Missing(Part):
    """What a section lacks, and the commands that measure it; sections with no more come last."""

    text: str
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Table(Part):
    """Rows of plain text below a header; the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: bool = False  # collapsed in HTML until the reader opens it

    @property
    def column_kinds(self) -> list[str]:
        """For each column "number" if it has text and all of it is numeric; else "words" if a cell
        is longer than WORDS_CELL_LENGTH; else ""."""
        kinds = []
        for number in range(len(self.header)):
            cells = [row[number] for row in self.rows if row[number]]
            has_words = max(map(len, cells), default=0) > WORDS_CELL_LENGTH
            is_numeric = cells and all(NUMERIC.fullmatch(cell) for cell in cells)
            kinds.append("number" if is_numeric else "words" if has_words else "")
        return kinds


@dataclass(frozen=True)
class Picture(Part):
    """A chart with a caption; Markdown shows only the caption. A section leaves out a picture whose
    chart had nothing to draw, which is None."""

    chart: Chart | None
    caption: str


Block = Text | Command | Missing | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: list[Block]

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
