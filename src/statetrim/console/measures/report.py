"""Console output of `report`."""

from pathlib import Path

from .. import terminal


def show_page(page: Path, *, as_json: bool) -> None:
    """Print the paths of the report."""
    if as_json:
        terminal.print_json({"html": str(page), "markdown": str(page.with_suffix(".md"))})
    else:
        terminal.print_text(
            f"written to {page} and {page.with_suffix('.md').name}, in the same directory"
        )
