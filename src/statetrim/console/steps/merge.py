"""What a person sees of `merge`."""

from .. import terminal


def show_merged(parts: int, output: str) -> None:
    terminal.print_text(f"{parts} statistics added, written to {output}")
