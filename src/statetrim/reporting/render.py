"""A document -> one self-contained HTML page, and Markdown; both escape all text."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..artifacts.card.markdown import escape, one_line
from .charts import Chart
from .document import (
    Block,
    Command,
    Document,
    Missing,
    Picture,
    Section,
    Text,
    as_sentence,
)
from .theme import DARK, LIGHT


def render_page(document: Document) -> str:
    """The page: no scripts, no external links, nothing to fetch."""
    style = _render("report.css", light=LIGHT, dark=DARK)
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return _render("report.html", document=document, style=Markup(style), style_digest=style_hash)


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__, "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"sentence": as_sentence, "svg": _svg}
    return environment


def _svg(chart: Chart) -> Markup:
    from .figures import inline_svg  # a page without charts needs no matplotlib

    return Markup(inline_svg(chart))


def render_markdown(document: Document) -> str:
    """The document as Markdown; of pictures only the captions."""
    summary = document.summary
    lines = [f"# {escape(document.title)}", ""]
    lines.append(f"**{escape(summary.answer)}**: {escape(summary.reason)}.")
    for note in summary.notes:
        lines += ["", f"> {escape(note)}."]
    for fact in summary.facts:
        lines += ["", f"- {escape(fact.name)}: {'; '.join(map(escape, fact.lines))}".rstrip()]
        if fact.commands:
            lines += ["", *(f"      {one_line(line)}" for line in fact.commands)]
    for section in document.shown:
        lines += ["", f"## {escape(section.title)}", *_section_lines(section)]
    if document.absent:
        lines += ["", "## Not in this report"]
    for section in document.absent:
        lines += ["", f"**{escape(section.title)}**", *_section_lines(section)]
    return "\n".join([*lines, "", escape(document.footer)]) + "\n"


def _section_lines(section: Section) -> Iterator[str]:
    for block in section.blocks:
        yield ""
        yield from _block_lines(block)


def _block_lines(block: Block) -> list[str]:
    """Lines of Markdown, escaped; of a picture only the caption."""
    if isinstance(block, Text):
        return [f"> {escape(block.text)}" if block.tone else escape(block.text)]
    if isinstance(block, Command):
        return _code_lines(block.lines)
    if isinstance(block, Missing):
        return [escape(block.text), *(["", *_code_lines(block.lines)] if block.lines else [])]
    if isinstance(block, Picture):
        return [f"*In report.html: {escape(block.caption)}*"]
    dashes = ["---:" if kind == "number" else "---" for kind in block.column_kinds]
    lines = [f"{escape(block.caption)}:", ""] if block.caption else []
    lines += [_table_row(block.header), f"|{'|'.join(dashes)}|"]
    return lines + [_table_row(row) for row in block.rows]


def _code_lines(lines: Sequence[str]) -> list[str]:
    return [f"    {one_line(line)}" for line in lines]


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"
