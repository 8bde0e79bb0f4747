"""A report as blocks, written twice: one HTML page that needs nothing else, and Markdown.

All text is plain text, escaped here and only here: artifacts come from strangers.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from itertools import groupby
from string import Template

NUMERIC = re.compile(
    r"none|\d+ x \d+|[-+]?[\d.,]+(e[-+]?\d+)?( ?(%|MiB|KiB|points|nats))?( \([\d.]+x\))?"
)


@dataclass(frozen=True)
class Text:
    """A paragraph; `kind` "note" is a remark of what may mislead, "missing" what is not there."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Command:
    """Lines to type in a shell."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows of plain text below a header; the first column names the row."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    folded: bool = False  # a long table beside a picture opens when asked for


@dataclass(frozen=True)
class Picture:
    """Ready markup (`<svg>` or `<img>`) of our own drawing; Markdown has the caption only."""

    markup: str
    caption: str


Block = Text | Command | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Document:
    """A title, the figures to see first, and sections."""

    title: str
    lead: str
    highlights: Sequence[tuple[str, str]]  # figure, what it is
    sections: Sequence[Section]
    footer: str
    notes: Sequence[Text] = ()  # what to know before anything else

    def as_html(self) -> str:
        """One page without scripts, links to other places, or anything to fetch."""
        folder = files(__package__) / "page"
        style = (folder / "report.css").read_text(encoding="utf-8")
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        contents = "".join(
            f'<li><a href="#{s.anchor}">{escape(s.title)}</a></li>' for s in self.sections
        )
        highlights = "".join(
            f"<div><dt>{escape(what)}</dt><dd>{escape(figure)}</dd></div>"
            for figure, what in self.highlights
        )
        return Template((folder / "report.html").read_text(encoding="utf-8")).substitute(
            style=style,
            style_digest=digest,
            title=escape(self.title),
            lead=escape(self.lead),
            notes="".join(map(_block_html, self.notes)),
            highlights=f"<dl class='highlights'>{highlights}</dl>" if highlights else "",
            contents=contents,
            sections="".join(map(_section_html, self.sections)),
            footer=escape(self.footer),
        )

    def as_markdown(self) -> str:
        lines = [f"# {_md(self.title)}", "", _md(self.lead), ""]
        for note in self.notes:
            lines += [*_block_markdown(note), ""]
        lines += [f"- {_md(what)}: **{_md(figure)}**" for figure, what in self.highlights]
        for section in self.sections:
            lines += ["", f"## {_md(section.title)}"]
            for block in section.blocks:
                lines += ["", *_block_markdown(block)]
        return "\n".join([*lines, "", _md(self.footer)]) + "\n"


def _section_html(section: Section) -> str:
    inner = ""
    for pictures, blocks in groupby(section.blocks, key=lambda block: isinstance(block, Picture)):
        html = "".join(map(_block_html, blocks))
        inner += f'<div class="figures">{html}</div>' if pictures else html
    return (
        f'<section aria-labelledby="{section.anchor}">'
        f'<h2 id="{section.anchor}">{escape(section.title)}</h2>{inner}</section>'
    )


def _block_html(block: Block) -> str:
    if isinstance(block, Text):
        kind = f' class="{block.kind}"' if block.kind else ""
        return f"<p{kind}>{escape(block.text)}</p>"
    if isinstance(block, Command):
        lines = "".join(f"<span>{escape(line)}\n</span>" for line in block.lines)
        return f'<pre tabindex="0"><code>{lines}</code></pre>'
    if isinstance(block, Picture):
        caption = f"<figcaption>{escape(block.caption)}</figcaption>"
        return f"<figure>{block.markup}{caption}</figure>"
    table = _table_html(block)
    if not block.folded:
        return table
    return f"<details><summary>{escape(block.caption)}</summary>{table}</details>"


def _table_html(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_aligned(table, column)}>{escape(name)}</th>'
        for column, name in enumerate(table.header)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{escape(cell)}</th>'
            if column == 0
            else f"<td{_aligned(table, column)}>{escape(cell)}</td>"
            for column, cell in enumerate(row)
        )
        + "</tr>"
        for row in table.rows
    )
    name = escape(table.caption or "table", quote=True)
    named = table.caption and not table.folded  # else the summary above it says so
    caption = f"<caption>{escape(table.caption)}</caption>" if named else ""
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{name}"><table>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _aligned(table: Table, column: int) -> str:
    if _numeric(table, column):
        return ' class="number"'
    return ' class="words"' if max((len(row[column]) for row in table.rows), default=0) > 24 else ""


def _numeric(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column]]
    return bool(cells) and all(NUMERIC.fullmatch(cell) for cell in cells)


def _block_markdown(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [f"> {_md(block.text)}" if block.kind else _md(block.text)]
    if isinstance(block, Command):
        return [f"    {' '.join(line.splitlines())}" for line in block.lines]
    if isinstance(block, Picture):
        return [f"*In report.html: {_md(block.caption)}*"]
    dashes = ["---:" if _numeric(block, n) else "---" for n in range(len(block.header))]
    lines = [f"{_md(block.caption)}:", ""] if block.caption else []
    lines += [_md_row(block.header), f"|{'|'.join(dashes)}|"]
    return lines + [_md_row(row) for row in block.rows]


def _md_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_md, cells))} |"


def _md(text: str) -> str:
    """Plain text in Markdown: nothing in it starts a link, a tag or a column."""
    flat = " ".join(text.split())
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", flat)
