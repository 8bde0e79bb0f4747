"""Kill a command at its filesystem events, run it again, and compare with an undisturbed run.

    python -m helpers.kills              every event of every command (`just kill-every-event`)
    python -m helpers.kills prune trim   every event of these commands

After a kill only the files remain. So of several events with the same files before them (a sync,
the read of a directory) only the first is tried; all are counted.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import faults
from helpers.commands import COMMANDS, KILLED, TIMED, clean, prepare
from helpers.forker import import_all

_COMMANDS: dict[str, faults.Command] = {**COMMANDS, **KILLED}


@dataclass
class UndisturbedRun:
    """A run without a fault: number of events, the first event of each distinct state of the files,
    and the files left at the end."""

    events: int
    first_events: list[int]
    files_left: dict[str, str]


def run_undisturbed(name: str, root: Path) -> UndisturbedRun:
    clean(root)
    result = faults.run(_COMMANDS[name], root, record=True)
    assert result.code == 0, result.err
    files_left = faults.file_hashes(root)
    clean(root)
    first_event_of_state = {
        state: number for number, state in reversed([*enumerate(result.states, start=1)])
    }
    return UndisturbedRun(len(result.states), sorted(first_event_of_state.values()), files_left)


def kill_and_rerun(name: str, root: Path, event: int, files_left: dict[str, str]) -> str | None:
    """Kill the command at `event` and run it again; returns the problem, or None."""
    clean(root)
    killed = faults.run(_COMMANDS[name], root, fault_at=event)
    if killed.code != -9:
        return f"was not killed: {killed.code} {killed.err[-300:]}"
    rerun = faults.run(_COMMANDS[name], root)
    files = faults.file_hashes(root)
    clean(root)
    if name in TIMED:  # only which files there are can be compared
        files, files_left = dict.fromkeys(files, ""), dict.fromkeys(files_left, "")
    differing = sorted(p for p in {*files, *files_left} if files.get(p) != files_left.get(p))
    if differing:
        return f"differs in {differing[:5]} after {rerun.code}: {rerun.err[-300:]}"
    # Killed after its last change, the command had finished: the result exists and is kept.
    finished = rerun.code == 2 and "not overwritten" in rerun.err
    return None if rerun.code == 0 or finished else f"ended with {rerun.code}: {rerun.err[-300:]}"


def every_event(names: Sequence[str], root: Path) -> Iterator[str]:
    for name in names:
        run = run_undisturbed(name, root)
        problems = {}
        for event in run.first_events:
            if problem := kill_and_rerun(name, root, event, run.files_left):
                problems[event] = problem
                print(f"  {name}, event {event}: {problem}", flush=True)
        yield (
            f"{name}: {run.events} events, {len(run.first_events)} states of the disk, a kill in "
            f"each, {len(problems)} failures"
        )


if __name__ == "__main__":
    import_all()
    faults.install()
    with tempfile.TemporaryDirectory(prefix="statetrim-kills-") as folder:
        for line in every_event(sys.argv[1:] or tuple(KILLED), prepare(Path(folder))):
            print(line, flush=True)
