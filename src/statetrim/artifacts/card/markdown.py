"""Untrusted text in Markdown: escaped, and on one line."""

import re
from collections.abc import Iterator, Sequence

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def escape(text: str) -> str:
    """One line in which nothing starts a link, a tag, a heading or a column."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", one_line(text))


def inline_code(text: str) -> str:
    """One line as inline code; backticks and bars are replaced."""
    return f"`{one_line(text).replace('`', chr(39)).replace('|', '/')}`"


def one_line(text: str) -> str:
    """The text with line breaks and control characters as single spaces."""
    return " ".join(_CONTROL.sub(" ", text).split())


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1
) -> Iterator[str]:
    """The lines of a table, escaped; the first `words` columns are words, the others figures."""
    yield f"| {' | '.join(map(escape, header))} |"
    yield "|" + "---|" * words + "---:|" * (len(header) - words)
    for row in rows:
        yield f"| {' | '.join(map(escape, row))} |"
