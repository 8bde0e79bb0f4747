"""A mistake in an option is reported before the slow import of torch."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from helpers.cases import load_cases
from statetrim.commands import app

GROUP: Any = typer.main.get_command(app)
MISTAKES = load_cases("mistakes")
SCRIPT = """
import contextlib, io, json, shlex, sys
from statetrim.commands import main
answers = {}
for line in json.loads(sys.argv[1]):
    sys.argv = ["statetrim", *shlex.split(line)]
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            answers[line] = [end.code, err.getvalue(), "torch" in sys.modules]
print(json.dumps(answers))
"""


def run(code: str, lines: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, json.dumps(lines)]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Run all mistakes in one process: none of them imports torch, or the rest would fail too."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "HERE").mkdir()
    answered: dict[str, list[Any]] = json.loads(run(SCRIPT, list(MISTAKES), folder).stdout)
    assert [path.name for path in folder.iterdir()] == ["HERE"]
    return answered


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_needs_no_torch(line: str, answers: dict[str, list[Any]]) -> None:
    code, message, torch = answers[line]
    assert code == 2 and MISTAKES[line] in message, message
    assert not torch


def test_every_command_is_tried() -> None:
    without_values = {"doctor"}  # its only option is --json
    assert {line.split()[0] for line in MISTAKES} | without_values == set(GROUP.commands)


def test_the_answer_takes_a_third_of_the_import_of_torch_at_most(tmp_path: Path) -> None:
    """CPU time, compared with that of the import, since machines differ and run other programs. The
    faster of two runs counts; 0.25 s compared with 1.7 s when this was written."""
    mistake = [sys.executable, "-m", "statetrim", "trim", "M", "-o", "O", "--tasks", "non/sense"]
    answer = min(processor_seconds(mistake, tmp_path) for _ in range(2))
    torch = min(
        processor_seconds([sys.executable, "-c", "import torch"], tmp_path) for _ in range(2)
    )
    assert answer < torch / 3, (answer, torch)


def processor_seconds(command: list[str], cwd: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=False, cwd=cwd, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


WAITING = """
import os, sys
sys.argv = ["statetrim", "--version"]
from statetrim.commands import main
try:
    main()
except SystemExit:
    pass
assert "torch" not in sys.modules, "it would have read its settings already"
print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.parametrize(("chosen", "used"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(
    chosen: str | None, used: str
) -> None:
    """OpenMP reads this variable when torch loads it."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if chosen is not None:
        environment["OMP_WAIT_POLICY"] = chosen
    command = [sys.executable, "-c", WAITING]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == used
