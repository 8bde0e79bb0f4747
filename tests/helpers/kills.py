"""Kill a command at its filesystem events, run it again, and compare with a run that was not.

    python -m helpers.kills              every event of every command (`just kill-every-event`)
    python -m helpers.kills prune trim   of these

A kill leaves nothing but the state of the disk. So of several events that find the same state (a
file about to be synced, a directory about to be read) one is enough; all are counted.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import faults
from helpers.commands import COMMANDS, KILLED, clean, prepare
from helpers.warm import warm

_WORDS = COMMANDS | KILLED


@dataclass
class Undisturbed:
    """A command without a fault: its events, the first of every state, and what it leaves."""

    events: int
    first: list[int]
    left: dict[str, str]


def undisturbed(name: str, root: Path) -> Undisturbed:
    clean(root)
    ended = faults.run(_WORDS[name], root, record=True)
    assert ended.code == 0, ended.err
    left = faults.tree(root)
    clean(root)
    first = {state: number for number, state in reversed([*enumerate(ended.states, start=1)])}
    return Undisturbed(len(ended.states), sorted(first.values()), left)


def trial(name: str, root: Path, event: int, left: dict[str, str]) -> str | None:
    """What is wrong after a kill at `event` and a second run; None where nothing is."""
    clean(root)
    killed = faults.run(_WORDS[name], root, at=event)
    if killed.code != -9:
        return f"was not killed: {killed.code} {killed.err[-300:]}"
    again = faults.run(_WORDS[name], root)
    found = faults.tree(root)
    clean(root)
    differing = sorted(p for p in {*found, *left} if found.get(p) != left.get(p))
    if differing:
        return f"differs in {differing[:5]} after {again.code}: {again.err[-300:]}"
    # Killed after the last change of its result, it had finished: the file is said to be there.
    finished = again.code == 2 and "not overwritten" in again.err
    return None if again.code == 0 or finished else f"ended with {again.code}: {again.err[-300:]}"


def every_event(names: Sequence[str], root: Path) -> Iterator[str]:
    for name in names:
        plain = undisturbed(name, root)
        wrong = {}
        for event in plain.first:
            if problem := trial(name, root, event, plain.left):
                wrong[event] = problem
                print(f"  {name}, event {event}: {problem}", flush=True)
        yield (
            f"{name}: {plain.events} events, {len(plain.first)} states of the disk, a kill in "
            f"each, {len(wrong)} failures"
        )


if __name__ == "__main__":
    warm()
    faults.install()
    with tempfile.TemporaryDirectory(prefix="statetrim-kills-") as folder:
        for line in every_event(sys.argv[1:] or tuple(KILLED), prepare(Path(folder))):
            print(line, flush=True)
