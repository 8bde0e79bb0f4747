"""Every command in the README is run, in order, in one empty directory."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import tiny

ROOT = Path(__file__).parents[1]
SETUP = ("pip install",)  # what .ci/run and the packaging test do


def blocks(language: str) -> list[str]:
    return re.findall(
        rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL
    )


def tiny_version(command: str) -> str:
    """The README speaks of heads of 128 channels and long texts; the tiny model has heads of 12."""
    for said, meant in (
        ("--keep 64", "--keep 6"),
        ("keep=64", "keep=6"),
        ("--tokens 64k", "--tokens 1k"),
        ("tokens=65536", "tokens=1024"),
        ("--tokens 64m", "--tokens 1k --length 64 --batch-size 4"),
    ):
        command = command.replace(said, meant)
    return command


def test_the_readme_runs(checkpoint: Any, tmp_path: Path) -> None:
    shutil.copytree(checkpoint("qwen3_5_text"), tmp_path / "MODEL")
    tiny.write_text(tmp_path / "text.jsonl", 2**14)
    data = tmp_path / "DATA" / "squad"
    data.mkdir(parents=True)
    (data / "rows.jsonl").write_text('{"text": "w1 w2 w3", "value": "w4"}\n' * 4)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    commands = [
        line.removeprefix("$ ").partition("#")[0].strip()
        for block in blocks("console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    ours = [command for command in commands if not command.startswith(SETUP)]
    assert len(ours) >= 3
    for command in ours:
        result = subprocess.run(
            tiny_version(command),
            shell=True,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, (command, result.stderr)
    for code in blocks("python"):
        shutil.rmtree(tmp_path / "SMALL", ignore_errors=True)
        program = tiny_version(code)
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
