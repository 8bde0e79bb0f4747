"""Kills at filesystem events, two processes on one output, full and read-only disks.

`helpers.adversary` runs them all, in children of one process; here is what it found. Every event of
every command: `just kill-every-event`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.commands import COMMANDS

Trials = list[tuple[str, str, str | None]]


@pytest.fixture(scope="module")
def found() -> Trials:
    command = [sys.executable, "-m", "helpers.adversary"]
    environment = {**os.environ, "TQDM_DISABLE": "1"}
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return [tuple(json.loads(line)) for line in lines]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("kill", 60),  # after a second run the output is that of an undisturbed one, byte for byte
        ("pair", 40),  # the second is told who is at work
        ("winner", len(COMMANDS)),  # and the first finishes as if it had been alone
        ("race", 4),
        ("full disk", 2 * len(COMMANDS)),
        ("room again", len(COMMANDS)),
        ("read-only", len(COMMANDS)),
    ],
)
def test_nothing_is_lost(kind: str, least: int, found: Trials) -> None:
    trials = {name: problem for trial_kind, name, problem in found if trial_kind == kind}
    assert len(trials) >= least
    assert not {name: problem for name, problem in trials.items() if problem}
