"""Kills, two processes with one output, full and read-only disks. One process imports everything
and forks a child for each command.

    python -m helpers.adversary                a sample, a line of JSON per trial
    python -m helpers.adversary pairs          the other trials of the sample, for every command
    python -m helpers.adversary every          a kill at every event of every command
    python -m helpers.adversary prune trim     a kill at every event of these commands

After a kill only the files remain. So of several events with the same files before them (a sync,
the read of a directory) only the first is tried; all are counted.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import faults
from helpers.commands import COMMANDS, KILLED, OUT, TIMED, clean, prepare
from helpers.forker import import_all
from statetrim.maths.formatting import evenly_spaced

KILLS_PER_COMMAND = {
    "prune": 4, "calibrate": 2, "refit": 1, "report": 1, "evaluate": 1, "recover": 2, "trim": 2,
}  # fmt: skip
"""Number of kills per command in the sample, more where the writing is the command's own."""
SAMPLE = (*KILLS_PER_COMMAND, "select")
"""A command of each way to write: directories, tensors, stages, and a single file."""
SECOND_COMMANDS = ("prune",)
"""Commands that are also started with an output that another command is writing."""
TrialResult = tuple[str, str, str | None]
"""Kind of trial, its name, and the problem or None."""

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


def try_kills(undisturbed_runs: Mapping[str, UndisturbedRun], root: Path) -> Iterator[TrialResult]:
    for name, count in KILLS_PER_COMMAND.items():
        # Not at the first and the last, where a run has written nothing or everything.
        for event in evenly_spaced(undisturbed_runs[name].first_events, count + 2)[1:-1]:
            problem = kill_and_rerun(name, root, event, undisturbed_runs[name].files_left)
            yield "kill", f"{name} at {event}", problem


def try_pairs(undisturbed_runs: Mapping[str, UndisturbedRun], root: Path) -> Iterator[TrialResult]:
    """One command is stopped (SIGSTOP) halfway; others are started with the same output."""
    for name in undisturbed_runs:
        command = COMMANDS[name]
        clean(root)
        middle = undisturbed_runs[name].events // 2
        first = faults.start(command, root, fault_at=middle, fault="stop")
        if not first.wait_until_stopped():
            yield "pair", name, "the first did not stop"
            continue
        seconds = (name,) if command[-1] != OUT else dict.fromkeys((name, *SECOND_COMMANDS))
        for second in seconds:
            ended = faults.run(COMMANDS[second], root)
            message = "another process is writing "
            fine = ended.code == 2 and message in ended.err and is_one_sentence(ended.err)
            problem = None if fine else f"{ended.code}: {ended.err[-300:]}"
            yield "pair", f"{second} while {name} is running", problem
        first.resume()
        ended, files_left = first.wait(), faults.file_hashes(root)
        clean(root)
        same = files_left == undisturbed_runs[name].files_left
        fine = ended.code == 0 and (same or name in TIMED)
        yield "winner", name, None if fine else f"{ended.code}: {ended.err[-300:]}"


def try_full_disks(
    undisturbed_runs: Mapping[str, UndisturbedRun], root: Path
) -> Iterator[TrialResult]:
    """The disk is full from the middle of a run on; a later run has room again."""
    for name, run in undisturbed_runs.items():
        command, event = COMMANDS[name], run.events // 2
        clean(root)
        ended = faults.run(command, root, fault_at=event, fault="full")
        problem = None
        if ended.code not in (1, 2) or not is_one_sentence(ended.err):
            problem = f"{ended.code}: {ended.err[-400:]}"
        yield "full disk", f"{name} at {event}", problem
        again = faults.run(command, root)
        same = faults.file_hashes(root) == run.files_left or name in TIMED
        fine = again.code == 0 and same
        yield "room again", name, None if fine else f"{again.code}: {again.err[-300:]}"
        clean(root)


def try_read_only(root: Path) -> Iterator[TrialResult]:
    """A read-only directory is reported before any model is loaded, and nothing is written."""
    directory = root / "closed"
    directory.mkdir(mode=0o555)
    for name, command in COMMANDS.items():
        ended = faults.run([*command[:-1], f"closed/{command[-1]}"], root, without_privileges=True)
        early = " runs in " not in ended.err and not any(directory.iterdir())
        fine = ended.code in (1, 2) and is_one_sentence(ended.err) and early
        yield "read-only", name, None if fine else f"{ended.code}: {ended.err[-300:]}"
    directory.rmdir()


def is_one_sentence(err: str) -> bool:
    """Whether standard error ends with its only `statetrim: ` line and has no traceback."""
    lines = err.strip().splitlines()
    messages = [line for line in lines if line.startswith("statetrim: ")]
    return len(messages) == 1 and lines[-1] == messages[0] and "Traceback" not in err


def main(names: Sequence[str]) -> Iterator[str]:
    """Every event of the commands `names`, or without names the sample that CI runs."""
    import_all()
    faults.install()
    with tempfile.TemporaryDirectory(prefix="statetrim-adversary-") as folder:
        root = prepare(Path(folder))
        os.chmod(root, 0o755)
        everywhere = list(names) == ["pairs"]
        if names and not everywhere:
            yield from every_event(names, root)
            return
        commands = COMMANDS if everywhere else SAMPLE
        undisturbed_runs = {name: run_undisturbed(name, root) for name in commands}
        for run_trials in (try_kills, try_pairs, try_full_disks):
            yield from map(json.dumps, run_trials(undisturbed_runs, root))
        yield from map(json.dumps, try_read_only(root))


if __name__ == "__main__":
    for line in main(tuple(KILLED) if sys.argv[1:] == ["every"] else sys.argv[1:]):
        print(line, flush=True)
