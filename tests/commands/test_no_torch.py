"""A mistake in an option is reported before the slow imports, above all that of torch."""

import json
import os
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
HEAVY = {"torch", "numpy", "scipy", "transformers", "datasets", "matplotlib", "pandas", "jinja2"}
answers = {}
for line in json.loads(sys.argv[1]):
    sys.argv = ["statetrim", *shlex.split(line)]
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            answers[line] = [end.code, err.getvalue(), sorted(HEAVY & {*sys.modules})]
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
def test_a_mistake_needs_neither_torch_nor_another_slow_import(
    line: str, answers: dict[str, list[Any]]
) -> None:
    code, message, heavy = answers[line]
    assert code == 2 and MISTAKES[line] in message, message
    assert not heavy


def test_every_command_is_tried() -> None:
    without_values = {"doctor"}  # its only option is --json
    assert {line.split()[0] for line in MISTAKES} | without_values == set(GROUP.commands)


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
