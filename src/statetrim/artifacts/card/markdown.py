"""Text of others in Markdown: it stays text, and on one line."""

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def escape(text: str) -> str:
    """Nothing in it starts a link, a tag, a heading or a column."""
    return re.sub(r"([\\`*_\[\]<>|#~&])", r"\\\1", one_line(text))


def inline_code(text: str) -> str:
    """As code, which ends where it should."""
    return f"`{one_line(text).replace('`', chr(39)).replace('|', '/')}`"


def one_line(text: str) -> str:
    """Without line breaks and other control characters."""
    return " ".join(_CONTROL.sub(" ", text).split())
