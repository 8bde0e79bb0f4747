"""What a person sees of `benchmark`."""

from ...artifacts.timings import Timings
from .. import terminal


def show_timings(timings: Timings, where: str, *, as_json: bool) -> None:
    if as_json:
        terminal.show_json(timings.as_json() | {"output": where})
        return
    terminal.show_table(timings.table(), left=1)
    for label, lines in timings.lineage.get("log", {}).items():
        for line in lines:
            terminal.say(f"{label}: {line}")
    terminal.say(f"medians (ratio to that of the first model); written to {where}")
