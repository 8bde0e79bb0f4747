"""Console output of `push`."""

from dataclasses import asdict

from ..storage.hub.upload import Pushed
from . import terminal


def show_pushed(pushed: Pushed, *, as_json: bool) -> None:
    """Print the URL, who can see it, and which files were left out."""
    if as_json:
        terminal.print_json(asdict(pushed))
        return
    visibility = "only you and those you let in see it" if pushed.private else "everyone sees it"
    terminal.print_text(f"{len(pushed.files)} files are at {pushed.url}; {visibility}")
    if pushed.left_out:
        names = ", ".join(pushed.left_out)
        terminal.note(f"left out, because they name paths of this machine or are large: {names}")
