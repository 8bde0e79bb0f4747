"""What a person sees of `report`."""

from pathlib import Path

from .. import terminal


def show_page(page: Path, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json({"html": str(page), "markdown": str(page.with_suffix(".md"))})
    else:
        terminal.say(f"written to {page} and {page.with_suffix('.md').name}, in the same directory")
