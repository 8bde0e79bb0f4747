"""A console that shows text as text: names may be anybody's, with codes a terminal obeys."""

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment


class PlainConsole(Console):
    """Rich's console; characters that print nothing become spaces, its own styles stay."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(map(_plain, buffer))


def _plain(segment: Segment) -> Segment:
    if segment.control or segment.text.isprintable() or segment.text == "\n":
        return segment
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in segment.text)
    return Segment(text, segment.style, segment.control)
