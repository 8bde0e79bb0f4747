"""Kills, two processes on one output, and disks that refuse: what CI runs of them, from one process
that has everything imported and forks a child for each command.

    python -m helpers.adversary          a line of JSON for each finding
"""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from helpers import faults
from helpers.commands import COMMANDS, OUT, clean, prepare
from helpers.kills import Undisturbed, trial, undisturbed
from helpers.warm import warm
from statetrim.maths.formatting import evenly_spaced

SAMPLE = {
    "prune": 12, "calibrate": 10, "refit": 10, "report": 12, "analyze": 8, "evaluate": 5,
    "recover": 3, "trim": 3, "sweep": 2,
}  # fmt: skip
"""Kills of each command, fewer where a run takes long."""
OTHERS = ("prune", "calibrate", "select", "merge", "report")
"""What is tried on an output that another command is writing."""
Found = tuple[str, str, str | None]
"""Kind of trial, which one, and what is wrong; None where nothing is."""


def kills(plain: Mapping[str, Undisturbed], root: Path) -> Iterator[Found]:
    for name, count in SAMPLE.items():
        for event in evenly_spaced(plain[name].first, count):
            yield "kill", f"{name} at {event}", trial(name, root, event, plain[name].left)


def pairs(plain: Mapping[str, Undisturbed], root: Path) -> Iterator[Found]:
    """One command is stopped in the middle of its work; others come for the same output."""
    for name, command in COMMANDS.items():
        clean(root)
        first = faults.start(command, root, at=plain[name].events // 2, fault="stop")
        if not first.stopped():
            yield "pair", name, "the first did not stop"
            continue
        seconds = (name,) if command[-1] != OUT else dict.fromkeys((name, *OTHERS))
        for second in seconds:
            ended = faults.run(COMMANDS[second], root)
            said = f"another process is writing .*process {first.pid} on "
            fine = ended.code == 2 and re.search(said, ended.err) and sentence(ended.err)
            problem = None if fine else f"{ended.code}: {ended.err[-300:]}"
            yield "pair", f"{second} while {name} is at work", problem
        first.go_on()
        ended, left = first.wait(), faults.tree(root)
        clean(root)
        same = left == plain[name].left or name == "benchmark"  # which tells times
        fine = ended.code == 0 and same
        yield "winner", name, None if fine else f"{ended.code}: {ended.err[-300:]}"


def races(plain: Mapping[str, Undisturbed], root: Path) -> Iterator[Found]:
    """Two at the same time: one wins, or the second finds the finished result of the same job."""
    for name in ("prune", "calibrate", "select", "report"):
        clean(root)
        both = [faults.start(COMMANDS[name], root) for _ in range(2)]
        ends = [child.wait() for child in both]
        left = faults.tree(root)
        clean(root)
        codes = sorted(ended.code for ended in ends)
        losers = all(sentence(ended.err) for ended in ends if ended.code)
        fine = codes[0] == 0 and codes[1] in (0, 2) and losers and left == plain[name].left
        yield "race", name, None if fine else f"{codes}: {[ended.err[-200:] for ended in ends]}"


def full_disks(plain: Mapping[str, Undisturbed], root: Path) -> Iterator[Found]:
    """The disk is full from the first event on, or from the middle; then there is room again."""
    for name, command in COMMANDS.items():
        for event in (1, plain[name].events // 2):
            clean(root)
            ended = faults.run(command, root, at=event, fault="full")
            problem = None
            if ended.code not in (1, 2) or not sentence(ended.err):
                problem = f"{ended.code}: {ended.err[-400:]}"
            yield "full disk", f"{name} at {event}", problem
        again = faults.run(command, root)
        same = faults.tree(root) == plain[name].left or name == "benchmark"
        fine = again.code == 0 and same
        yield "room again", name, None if fine else f"{again.code}: {again.err[-300:]}"
        clean(root)


def read_only(root: Path) -> Iterator[Found]:
    """Told before any model is loaded, and nothing is written."""
    place = root / "closed"
    place.mkdir(mode=0o555)
    for name, command in COMMANDS.items():
        ended = faults.run([*command[:-1], f"closed/{command[-1]}"], root, without_privileges=True)
        early = " runs in " not in ended.err
        fine = ended.code in (1, 2) and sentence(ended.err) and early and not any(place.iterdir())
        yield "read-only", name, None if fine else f"{ended.code}: {ended.err[-300:]}"
    place.rmdir()


def sentence(err: str) -> bool:
    """Whether what was said last is one sentence, and no traceback stands before it."""
    lines = err.strip().splitlines()
    own = [line for line in lines if line.startswith("statetrim: ")]
    return len(own) == 1 and lines[-1] == own[0] and "Traceback" not in err


def main() -> None:
    warm()
    faults.install()
    with tempfile.TemporaryDirectory(prefix="statetrim-adversary-") as folder:
        root = prepare(Path(folder))
        os.chmod(root, 0o755)
        plain = {name: undisturbed(name, root) for name in COMMANDS}
        for name, seen in plain.items():
            print(json.dumps(["events", name, f"{seen.events} {len(seen.first)}"]), flush=True)
        for found in (kills, pairs, races, full_disks):
            for line in found(plain, root):
                print(json.dumps(line), flush=True)
        for line in read_only(root):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
