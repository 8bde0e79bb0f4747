"""Every command in the README and the quickstart is run, in order, each page in an empty directory,
from the built wheel in a fresh environment."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from helpers.doc_pages import block_commands, code
from helpers.fresh_install import ROOT, FreshEnvironment
from statetrim.serving.deployment import ship_verdicts
from statetrim.serving.engines import engine_in_matrix
from statetrim.serving.matrix import Shape, compatibility_of_shape

SETUP = ("pip install", "hf download", "cd ")  # done by the fixture
ELSEWHERE = ("statetrim demo", "vllm serve", "curl ")  # tested by other functions
QUICK = {
    "trim": "--length 64 --limit 2 --no-control", "evaluate": "--limit 2",
    "benchmark": "--rounds 1", "recover": "--length 64 --batch-size 4",
}  # fmt: skip


def commands(page: str, program: str = "") -> list[str]:
    """The commands of a page that a reader types, in order."""
    shown = block_commands(ROOT / page, "console")
    return [command for command in shown if command.startswith(program)]


def tiny_version(command: str) -> str:
    """The command with numbers for the tiny model, which has 12 channels per head, not 128."""
    for original, replacement in (
        ("--to 64x64", "--to 4x4"),
        ('to="64x64"', 'to="4x4"'),
        ("--to 96x96,64x64,48x48", "--to 8x6,6x4"),
        ("--tokens 64k", "--tokens 1k"),
        ("--tokens 32k --length 512", "--tokens 1k --length 64"),
        ("--tokens 32k", "--tokens 1k"),
        ("--tokens 16k --length 512", "--tokens 1k --length 256"),
        ("tokens=32768", "tokens=1024"),
        ('tokens="64k", out=', "tokens=1024, length=64, limit=2, control=False, out="),
        ("--tokens 64m", "--tokens 1k"),
    ):
        command = command.replace(original, replacement)
    program, name, *_ = [*command.split(), ""]
    return f"{command} {QUICK[name]}" if program == "statetrim" and name in QUICK else command


def test_the_package_index_gets_no_link_that_leads_nowhere(
    tmp_path: Path, fresh: FreshEnvironment
) -> None:
    """The package index shows the wheel's description without the repository: no relative links."""
    read = "from importlib.metadata import metadata; print(metadata('statetrim').get_payload())"
    shown = fresh.run(f'python -c "{read}"', tmp_path).stdout
    assert "## Will it work with my model and engine?" in shown
    assert "[your model](#will-it-work-with-my-model-and-engine)" in shown
    targets = re.findall(r"\]\(([^)]*)\)", shown)
    assert (
        targets and [target for target in targets if not target.startswith(("https:", "#"))] == []
    )


@pytest.mark.timeout(1800)  # some twenty commands
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_page_runs(page: str, checkpoint: Any, tmp_path: Path, fresh: FreshEnvironment) -> None:
    shutil.copytree(checkpoint("qwen3_5_text"), tmp_path / "MODEL")
    tiny.write_text(tmp_path / "text.jsonl", 2**16)
    tiny.write_text(tmp_path / "test.jsonl", 2**16 + 2**10, seed=1)
    page_commands = [line for line in commands(page) if not line.startswith((*SETUP, *ELSEWHERE))]
    assert len(page_commands) >= 3
    for command in page_commands:
        result = fresh.run(tiny_version(command), tmp_path)
        assert result.returncode == 0, (command, result.stderr)
    for number, snippet in enumerate(code(ROOT / page, "python")):
        shutil.rmtree(tmp_path / "SMALL", ignore_errors=True)
        (tmp_path / f"code{number}.py").write_text(tiny_version(snippet))
        result = fresh.run(f"python code{number}.py", tmp_path)
        assert result.returncode == 0, result.stderr


@pytest.mark.timeout(1200)
def test_the_demo_has_all_four_endings(tmp_path: Path, fresh: FreshEnvironment) -> None:
    """The demo cuts the model in the wheel, and its verdicts separate a good cut from bad ones."""
    done = fresh.run("statetrim demo", tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "statetrim-demo"
    assert "**Ship**" in (folder / "report" / "report.md").read_text()
    assert not folder.with_name("statetrim-demo.partial").exists()
    scores = st.Scores.load(folder / "scores.json")
    verdicts = ship_verdicts(scores, [folder / name for name in scores.models[1:]])
    assert {verdict.model: str(verdict.outcome) for verdict in verdicts} == {
        "HALF": "ship",
        "QUARTER": "ship after recovery",
        "TINY": "do not ship",
    }
    recall = {name: scores.find(name, "mqar", "accuracy").value for name in scores.models}
    assert recall["MODEL"] > 0.95
    assert recall["HALF"] > recall["RANDOM"] + 0.2
    lines = done.stdout.splitlines()
    assert len(lines) <= 48
    again = fresh.run("statetrim demo", tmp_path)
    assert again.returncode == 2
    assert "exists already and is not overwritten" in again.stderr


def test_the_quickstart_serves_as_inspect_says() -> None:
    lines = compatibility_of_shape("qwen3_5", Shape(64, 64))
    served = [line for line in lines if line.serves]
    valid = {engine_in_matrix(line.engine).serve_command("OUT", line.flag) for line in served}
    assert set(commands("docs/quickstart.md", "vllm ")) <= valid
    assert commands("docs/quickstart.md", "vllm ")


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demos_next_commands_run_as_printed(tmp_path: Path, fresh: FreshEnvironment) -> None:
    lines = fresh.run("statetrim demo", tmp_path).stdout.splitlines()
    printed = [line.strip() for line in lines if line.startswith("  statetrim ")]
    assert {line.split()[1] for line in printed} == {"recover", "inspect", "verify", "trim"}
    for command in printed:
        if "YOUR-MODEL" not in command:
            done = fresh.run(command, tmp_path / "statetrim-demo")
            assert done.returncode == 0, (command, done.stderr)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_quickstart_runs_as_written_on_the_demo_model(
    tmp_path: Path, fresh: FreshEnvironment
) -> None:
    page_commands = commands("docs/quickstart.md", "statetrim ")
    assert page_commands[:2] == ["statetrim doctor", "statetrim demo"]
    for number, command in enumerate(page_commands):
        result = fresh.run(command, tmp_path / "statetrim-demo" if number > 1 else tmp_path)
        assert result.returncode == 0, (command, result.stderr)
    for snippet in code(ROOT / "docs/quickstart.md", "python"):
        (tmp_path / "code.py").write_text(snippet)
        result = fresh.run(f"python {tmp_path / 'code.py'}", tmp_path / "statetrim-demo")
        assert result.returncode == 0, result.stderr
