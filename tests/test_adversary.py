"""Kills at filesystem events, two processes on one output, full and read-only disks.

`helpers.adversary` runs a sample of them in child processes, and the tests check its results.
`just kill-every-event` runs every event of every command, `just kill-every-event pairs` the rest.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.adversary import KILLS_PER_COMMAND, SAMPLE
from helpers.commands import COMMANDS

KILLS = sum(KILLS_PER_COMMAND.values())
Trials = list[tuple[str, str, str | None]]


@pytest.fixture(scope="module")
def trials() -> Trials:
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
        ("kill", KILLS),  # a second run completes the output, byte for byte as without a kill
        ("pair", len(SAMPLE)),  # the second process is refused and learns which one runs
        ("winner", len(SAMPLE)),  # the first process finishes as if it were alone
        ("full disk", len(SAMPLE)),
        ("room again", len(SAMPLE)),
        ("read-only", len(COMMANDS)),
    ],
)
def test_nothing_is_lost(kind: str, least: int, trials: Trials) -> None:
    problems = {name: problem for trial_kind, name, problem in trials if trial_kind == kind}
    assert len(problems) >= least
    assert not {name: problem for name, problem in problems.items() if problem}
