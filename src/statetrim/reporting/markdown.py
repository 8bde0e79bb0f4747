"""A document -> Markdown; text of artifacts is escaped: no links, tags or table columns of it."""

from collections.abc import Iterator, Sequence

from ..artifacts.card.markdown import escape, one_line
from .document import Block, Command, Document, Gallery, Missing, Picture, Section, Text


def render_markdown(document: Document) -> str:
    """The document as Markdown; of pictures only the captions."""
    summary = document.summary
    lines = [f"# {escape(document.title)}", ""]
    lines.append(f"**{escape(summary.answer)}**: {escape(summary.reason)}.")
    for note in summary.notes:
        lines += ["", f"> {escape(note)}."]
    for fact in summary.facts:
        lines += ["", f"- {escape(fact.name)}: {'; '.join(map(escape, fact.lines))}"]
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
    """Lines of Markdown, escaped; of a picture or gallery only the caption."""
    if isinstance(block, Text):
        return [f"> {escape(block.text)}" if block.tone else escape(block.text)]
    if isinstance(block, Command):
        return _code_lines(block.lines)
    if isinstance(block, Missing):
        return [escape(block.text), *(["", *_code_lines(block.lines)] if block.lines else [])]
    if isinstance(block, Picture | Gallery):
        return [f"*In report.html: {escape(block.caption)}*"]
    dashes = ["---:" if kind == "number" else "---" for kind in block.column_kinds]
    lines = [f"{escape(block.caption)}:", ""] if block.caption else []
    lines += [_table_row(block.header), f"|{'|'.join(dashes)}|"]
    return lines + [_table_row(row) for row in block.rows]


def _code_lines(lines: Sequence[str]) -> list[str]:
    return [f"    {one_line(line)}" for line in lines]


def _table_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"
