"""What commands share: help, version, completion and `--quiet`; two commands, and their logs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import statetrim as st
from helpers.forker import Forker
from helpers.refusal import run as run_here
from helpers.tiny import Load
from statetrim.commands import app
from statetrim.commands import progress as console
from statetrim.commands.group import _global_options_first
from statetrim.progress import Progress, counter, progress_reporter
from statetrim.version import __version__

GROUP: Any = typer.main.get_command(app)


def run(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "statetrim", *map(str, words)]
    variables = os.environ | {"COLUMNS": "80"} | environment
    return subprocess.run(command, capture_output=True, text=True, env=variables)


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
    ("typed", "offered"), [("statetrim tri", "trim"), ("statetrim trim --metho", "--method")]
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
    typed = "trim M --quiet -o OUT --traceback -- --quiet"
    program_options_first = "--quiet --traceback trim M -o OUT -- --quiet"
    assert _global_options_first(typed.split()) == program_options_first.split()


def test_quiet_leaves_results_and_warnings(
    checkpoint: Load, text: Path, warm_forker: Forker
) -> None:
    words = ["trim", str(checkpoint("qwen3_next")), "--to", "6x100%", "--text", str(text)]
    words += ["--tokens", "1k", "--limit", "2"]
    quiet = warm_forker.run([*words, "--dry-run", "-o", "O", "--quiet"])
    assert quiet["code"] == 0, quiet["err"]
    assert quiet["err"].startswith("warning: 6x8 is refused by") and quiet["err"].count("\n") == 1
    assert "calibrate" in quiet["out"], "the plan is what a dry run is for"


def broken_inspect(*words: str, defect: str = "1 // 0") -> subprocess.CompletedProcess[str]:
    """`statetrim inspect` with a defect: by default a division by zero."""
    program = (
        "import statetrim.commands.arguments as arguments; from statetrim.commands import main\n"
        f"arguments.open_model = lambda *args, **kwargs: {defect}\nmain()"
    )
    command = [sys.executable, "-c", program, "inspect", "M", *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_an_unexpected_error_is_one_sentence() -> None:
    done = broken_inspect()
    assert done.returncode == 1 and not done.stdout
    assert done.stderr == (
        "statetrim: unexpected ZeroDivisionError: integer division or modulo by zero; the same "
        "command with --traceback shows where, please report it\n"
    )
    done = broken_inspect("--traceback")
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert done.stderr.endswith("ZeroDivisionError: integer division or modulo by zero\n")
    refused = broken_inspect("--traceback", defect="__import__('statetrim').open('/nowhere/x')")
    assert refused.returncode == 2 and "StatetrimError: " in refused.stderr
    without_text = broken_inspect(defect="next(iter([]))").stderr
    assert without_text.startswith("statetrim: unexpected StopIteration; the same command")


def test_select_and_prune_end_in_a_smaller_checkpoint(
    checkpoint: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = st.open(checkpoint("qwen3_5_text"))

    def printed(line: str) -> str:
        code, err, out = run_here(line.replace("MODEL", str(model.path)).split())
        assert code is None, err
        return out

    seen = json.loads(printed("inspect MODEL --to 6x4 --json"))
    assert (seen["after"]["head_k_dim"], seen["after"]["head_v_dim"]) == (6, 4)
    weights_only = "--method l1,readout_l1 --option score=q"
    selected = printed(f"select MODEL --to 6x4 {weights_only} -o p.json")
    assert "6, by l1 (score=q)" in selected and "4, by readout_l1" in selected
    assert "12 x 8 -> 6 x 4" in selected
    plan = st.Plan.load("p.json")
    assert plan.to == "6x4" and plan.counts("value") == dict.fromkeys(plan.layers, 4)
    assert (plan.axes["key"].options, plan.axes["value"].method) == ({"score": "q"}, "readout_l1")

    dry = json.loads(printed("prune MODEL p.json -o out --dry-run --json"))
    assert dry["head_k_dim"] == [12, 6]
    assert [path.name for path in tmp_path.iterdir()] == ["p.json"]

    report = json.loads(printed("prune MODEL p.json -o out --json"))
    small = st.open("out")
    assert (report["head_k_dim"], report["head_v_dim"]) == ([12, 6], [8, 4])
    assert (small.geometry.head_k_dim, small.geometry.head_v_dim) == (6, 4)
    assert report["parameters"] == [model.parameters, small.parameters]
    assert seen["parameters_after"] == small.parameters
    assert report["weight_bytes"][1] == 4 * small.parameters

    printed("prune MODEL p.json -o out")  # the same job is already done
    assert not Path("out.partial").exists()


def test_a_log_gets_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with console.show_progress() as quick:
        quick(Progress(512, 1024, "tokens"))
    monkeypatch.setattr(console, "_LINE_SECONDS", 0.0)
    with console.show_progress() as shown, progress_reporter(shown, "pruning") as slow:
        written = counter(slow, 2048, "bytes")
        written(512)
        written(512)
    with console.show_progress("recovering") as training:
        training(Progress(2, 4, "steps", loss=float("nan")))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "pruning: 512 of 2,048 bytes, 25%",
        "pruning: 1,024 of 2,048 bytes, 50%",
        "recovering: 2 of 4 steps, 50%, no finite loss",
    ]
