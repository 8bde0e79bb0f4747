"""A console that removes control characters: names of models and files are untrusted."""

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from rich.console import Console
from rich.segment import Segment


class PlainConsole(Console):
    """Rich's console, where non-printable characters become spaces; styles still work."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print above the bar, if tqdm shows one."""
        tqdm = sys.modules.get("tqdm")
        with tqdm.tqdm.external_write_mode(self.file) if tqdm else nullcontext():
            super().print(*objects, **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(map(_printable, buffer))


def _printable(segment: Segment) -> Segment:
    """The segment with spaces for non-printable characters, except newlines."""
    if segment.control or segment.text.isprintable() or segment.text == "\n":
        return segment
    text = "".join(c if c.isprintable() or c == "\n" else " " for c in segment.text)
    return Segment(text, segment.style, segment.control)
