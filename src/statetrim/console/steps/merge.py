"""What a person sees of `merge`."""

from .. import terminal


def show_merged(parts: int, where: str) -> None:
    terminal.say(f"{parts} statistics added, written to {where}")
