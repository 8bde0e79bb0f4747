"""Console output of `merge`."""

from .. import terminal


def show_merged(parts: int, output: str) -> None:
    """Print how many statistics files were added, and where the sum is."""
    terminal.print_text(f"{parts} statistics added, written to {output}")
