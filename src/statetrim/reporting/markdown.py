"""A document -> Markdown, in which no artifact's text starts a link, a tag or a column."""

from collections.abc import Iterator, Sequence

from ..artifacts.card.markdown import one_line, plain
from .document import Block, Command, Document, Fact, Gallery, Missing, Opening, Picture, Text


def markdown(document: Document) -> str:
    lines = [f"# {plain(document.title)}", "", *_opening(document.opening)]
    for section in document.shown:
        lines += ["", f"## {plain(section.title)}"]
        for block in section.blocks:
            lines += ["", *_block(block)]
    if document.absent:
        lines += ["", "## Not in this report"]
    for section in document.absent:
        lines += ["", f"**{plain(section.title)}**"]
        for block in section.blocks:
            lines += ["", *_block(block)]
    return "\n".join([*lines, "", plain(document.footer)]) + "\n"


def _opening(opening: Opening) -> Iterator[str]:
    yield f"**{plain(opening.answer)}**: {plain(opening.reason)}."
    for note in opening.notes:
        yield from ("", f"> {plain(note)}.")
    for fact in opening.facts:
        yield from ("", *_fact(fact))


def _fact(fact: Fact) -> Iterator[str]:
    yield f"- {plain(fact.name)}: {'; '.join(map(plain, fact.lines))}"
    if fact.commands:
        yield from ("", *(f"      {one_line(line)}" for line in fact.commands))


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [f"> {plain(block.text)}" if block.tone else plain(block.text)]
    if isinstance(block, Command):
        return _code(block.lines)
    if isinstance(block, Missing):
        return [plain(block.text), *(["", *_code(block.lines)] if block.lines else [])]
    if isinstance(block, Picture | Gallery):
        return [f"*In report.html: {plain(block.caption)}*"]
    dashes = ["---:" if column == "number" else "---" for column in block.columns]
    lines = [f"{plain(block.caption)}:", ""] if block.caption else []
    lines += [_row(block.header), f"|{'|'.join(dashes)}|"]
    return lines + [_row(row) for row in block.rows]


def _code(lines: Sequence[str]) -> list[str]:
    return [f"    {one_line(line)}" for line in lines]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |"
