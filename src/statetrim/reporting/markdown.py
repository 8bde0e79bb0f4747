"""A document -> Markdown, in which no artifact's text starts a link, a tag or a column."""

from collections.abc import Iterator, Sequence

from ..artifacts.card.markdown import escape, one_line
from .document import Block, Command, Document, Fact, Gallery, Missing, Opening, Picture, Text


def markdown(document: Document) -> str:
    lines = [f"# {escape(document.title)}", "", *_opening(document.opening)]
    for section in document.shown:
        lines += ["", f"## {escape(section.title)}"]
        for block in section.blocks:
            lines += ["", *_block(block)]
    if document.absent:
        lines += ["", "## Not in this report"]
    for section in document.absent:
        lines += ["", f"**{escape(section.title)}**"]
        for block in section.blocks:
            lines += ["", *_block(block)]
    return "\n".join([*lines, "", escape(document.footer)]) + "\n"


def _opening(opening: Opening) -> Iterator[str]:
    yield f"**{escape(opening.answer)}**: {escape(opening.reason)}."
    for note in opening.notes:
        yield from ("", f"> {escape(note)}.")
    for fact in opening.facts:
        yield from ("", *_fact(fact))


def _fact(fact: Fact) -> Iterator[str]:
    yield f"- {escape(fact.name)}: {'; '.join(map(escape, fact.lines))}"
    if fact.commands:
        yield from ("", *(f"      {one_line(line)}" for line in fact.commands))


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [f"> {escape(block.text)}" if block.tone else escape(block.text)]
    if isinstance(block, Command):
        return _code(block.lines)
    if isinstance(block, Missing):
        return [escape(block.text), *(["", *_code(block.lines)] if block.lines else [])]
    if isinstance(block, Picture | Gallery):
        return [f"*In report.html: {escape(block.caption)}*"]
    dashes = ["---:" if column == "number" else "---" for column in block.columns]
    lines = [f"{escape(block.caption)}:", ""] if block.caption else []
    lines += [_row(block.header), f"|{'|'.join(dashes)}|"]
    return lines + [_row(row) for row in block.rows]


def _code(lines: Sequence[str]) -> list[str]:
    return [f"    {one_line(line)}" for line in lines]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, cells))} |"
