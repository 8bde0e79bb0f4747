"""A document -> Markdown; text of artifacts is escaped: no links, tags or table columns of it."""

from collections.abc import Iterator, Sequence

from ..artifacts.card.markdown import escape, one_line
from .document import Block, Command, Document, Fact, Gallery, Missing, Picture, Summary, Text


def render_markdown(document: Document) -> str:
    """The document as Markdown; of pictures only the captions."""
    lines = [f"# {escape(document.title)}", "", *_summary_lines(document.summary)]
    for section in document.shown:
        lines += ["", f"## {escape(section.title)}"]
        for block in section.blocks:
            lines += ["", *_block_lines(block)]
    if document.absent:
        lines += ["", "## Not in this report"]
    for section in document.absent:
        lines += ["", f"**{escape(section.title)}**"]
        for block in section.blocks:
            lines += ["", *_block_lines(block)]
    return "\n".join([*lines, "", escape(document.footer)]) + "\n"


def _summary_lines(summary: Summary) -> Iterator[str]:
    yield f"**{escape(summary.answer)}**: {escape(summary.reason)}."
    for note in summary.notes:
        yield from ("", f"> {escape(note)}.")
    for fact in summary.facts:
        yield from ("", *_fact_lines(fact))


def _fact_lines(fact: Fact) -> Iterator[str]:
    yield f"- {escape(fact.name)}: {'; '.join(map(escape, fact.lines))}"
    if fact.commands:
        yield ""
        for line in fact.commands:
            yield f"      {one_line(line)}"


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
