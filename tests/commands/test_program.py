"""What all commands share: help, version, completion, `--quiet` and `--log`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from helpers.forker import Forker
from helpers.refusal import check_refusal
from statetrim.commands import app
from statetrim.commands.group import _global_options_first
from statetrim.version import __version__

GROUP: Any = typer.main.get_command(app)


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "statetrim", *map(str, words)]
    variables = os.environ | {"COLUMNS": "80"} | environment
    return subprocess.run(command, capture_output=True, text=True, check=False, env=variables)


def test_the_version() -> None:
    shown = run("--version")
    assert (shown.returncode, shown.stdout) == (0, f"statetrim {__version__}\n")


@pytest.mark.parametrize("name", ["", *GROUP.commands])
def test_help_fits_80_columns_and_nothing_is_cut(name: str) -> None:
    from typer.testing import CliRunner

    words = [name] if name else []
    short, long = (
        CliRunner().invoke(app, [*words, flag], env={"COLUMNS": "80"}).stdout
        for flag in ("-h", "--help")
    )
    assert short == long
    assert "…" not in long and max(map(len, long.splitlines())) <= 80
    plain = "".join(long.split())
    command = GROUP.commands[name] if name else GROUP
    for parameter in command.params:
        for flag in parameter.opts if parameter.param_type_name == "option" else ():
            assert flag in plain
        assert "".join((parameter.help or "").split()) in plain
    for subcommand in getattr(command, "commands", {}).values():
        assert "".join(subcommand.help.split()) in plain


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("statetrim tri", "trim"), ("statetrim trim --metho", "--method")],
)
def test_the_shell_completes(typed: str, offered: str) -> None:
    last = str(len(typed.split()) - 1)
    command = [
        sys.executable,
        "-c",
        "import sys; sys.argv = ['statetrim']; from statetrim.commands import main; main()",
    ]
    completion_variables = {
        "_STATETRIM_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": last,
    }
    shown = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | completion_variables
    )
    assert shown.stdout.split() == [offered]


def test_options_of_the_program_stand_anywhere() -> None:
    typed = "trim M --quiet --log a.txt -o OUT --traceback"
    program_options_first = "--quiet --log a.txt --traceback trim M -o OUT"
    assert _global_options_first(typed.split()) == program_options_first.split()
    assert _global_options_first(["x", "--log=a", "--", "--quiet"]) == [
        "--log=a",
        "x",
        "--",
        "--quiet",
    ]
    assert _global_options_first(["x", "--log"]) == ["--log", "x"]


def test_quiet_leaves_results_and_warnings_and_the_log_has_all(
    checkpoint: Callable[[str], Path], text: Path, tmp_path: Path, warm_forker: Forker
) -> None:
    log = tmp_path / "run.log"
    words = ["trim", str(checkpoint("qwen3_next")), "--to", "6x100%", "--text", str(text)]
    words += ["--tokens", "1k", "--limit", "2"]
    quiet = warm_forker.run([*words, "--dry-run", "-o", "O", "--quiet", "--log", str(log)])
    assert quiet["code"] == 0, quiet["err"]
    assert quiet["err"].startswith("warning: 6x8 is refused by") and quiet["err"].count("\n") == 1
    assert "calibrate" in quiet["out"], "the plan is what a dry run is for"
    first = log.read_text()
    assert first.startswith("# statetrim log\n") and "$ statetrim trim" in first
    for expected in ("state per sequence", quiet["err"], "sliced equals masked"):
        assert expected in first
    again = run("inspect", tmp_path / "nowhere", "--log", log)
    assert again.returncode == 2
    added = log.read_text().removeprefix(first).splitlines()
    assert len(added) == 2 and added[1].endswith(again.stderr.strip())


def test_a_log_never_touches_another_file(tmp_path: Path) -> None:
    other_file = tmp_path / "model.safetensors"
    other_file.write_text("mine")
    for path, message in ((other_file, "is not a log of statetrim"), (tmp_path, "is not a log")):
        done = run("inspect", "M", "--log", path)
        check_refusal(done.returncode, done.stderr, done.stdout, message)
    done = run("inspect", "M", "--log", tmp_path / "none" / "a.log")
    check_refusal(done.returncode, done.stderr, done.stdout, "cannot be written")
    assert other_file.read_text() == "mine"


def test_a_log_on_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """The error message itself cannot be written to the log."""
    program = (
        "import os, resource, signal, sys; from statetrim.commands import main; "
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20, 20)); main()"
    )
    words = ["inspect", "nowhere", "--log", str(tmp_path / "a.log")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert done.stderr.count("statetrim: ") == 1


def test_a_log_holds_nothing_that_a_terminal_obeys(tmp_path: Path) -> None:
    run("inspect", tmp_path / "a\x1b[2Jb", "--log", tmp_path / "a.log")
    assert "\x1b" not in (tmp_path / "a.log").read_text()


def broken_inspect(*words: str, defect: str = "1 // 0") -> subprocess.CompletedProcess[str]:
    """`statetrim inspect` with a defect: by default a division by zero."""
    program = (
        "import statetrim.commands.arguments as arguments; from statetrim.commands import main\n"
        f"arguments.open_model = lambda *args, **kwargs: {defect}\nmain()"
    )
    command = [sys.executable, "-c", program, "inspect", "M", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_unexpected_error_is_one_sentence(tmp_path: Path) -> None:
    done = broken_inspect()
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == (
        "statetrim: unexpected ZeroDivisionError: integer division or modulo by zero; the same "
        "command with --traceback shows where, please report it\n"
    )
    log = tmp_path / "a.log"
    done = broken_inspect("--log", str(log))
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"; {log} shows where, please" in done.stderr
    assert "Traceback (most recent call last)" in log.read_text()
    assert log.read_text().endswith(done.stderr)
    done = broken_inspect("--traceback")
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: integer division or modulo by zero\n")
    without_text = broken_inspect(defect="next(iter([]))").stderr
    assert without_text.startswith("statetrim: unexpected StopIteration; the same command")
