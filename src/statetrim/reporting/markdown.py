"""A document -> Markdown, in which no artifact's text starts a link, a tag or a column."""

from collections.abc import Sequence

from ..artifacts.card.markdown import one_line, plain
from .document import Block, Command, Document, Gallery, Picture, Text


def markdown(document: Document) -> str:
    lines = [f"# {plain(document.title)}", "", plain(document.lead), ""]
    for note in document.notes:
        lines += [*_block(note), ""]
    lines += [f"- {plain(what)}: **{plain(figure)}**" for figure, what in document.highlights]
    for section in document.sections:
        lines += ["", f"## {plain(section.title)}"]
        for block in section.blocks:
            lines += ["", *_block(block)]
    return "\n".join([*lines, "", plain(document.footer)]) + "\n"


def _block(block: Block) -> list[str]:
    if isinstance(block, Text):
        return [f"> {plain(block.text)}" if block.tone else plain(block.text)]
    if isinstance(block, Command):
        return [f"    {one_line(line)}" for line in block.lines]
    if isinstance(block, Picture | Gallery):
        return [f"*In report.html: {plain(block.caption)}*"]
    dashes = ["---:" if column == "number" else "---" for column in block.columns]
    lines = [f"{plain(block.caption)}:", ""] if block.caption else []
    lines += [_row(block.header), f"|{'|'.join(dashes)}|"]
    return lines + [_row(row) for row in block.rows]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(plain, cells))} |"
