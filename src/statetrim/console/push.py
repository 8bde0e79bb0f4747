"""What a person sees of `push`."""

from dataclasses import asdict

from ..storage.hub.upload import Pushed
from . import terminal


def show_pushed(pushed: Pushed, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json(asdict(pushed))
        return
    seen = "only you and those you let in see it" if pushed.private else "everyone sees it"
    terminal.say(f"{len(pushed.files)} files are at {pushed.url}; {seen}")
    if pushed.left_out:
        names = ", ".join(pushed.left_out)
        terminal.note(f"left out, because they name paths of this machine or are large: {names}")
