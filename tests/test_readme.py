"""Every command in the README and the quickstart is run, in order, each page in an empty directory,
from the built wheel in a fresh environment."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny
from helpers.fresh_install import ROOT, Fresh, fresh  # noqa: F401

SETUP = ("pip install",)  # what the fixture did
ELSEWHERE = ("statetrim demo",)  # test_demo.py


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def tiny_version(command: str) -> str:
    """The pages speak of heads of 128 channels and long texts; the tiny model has heads of 12."""
    for said, meant in (
        ("--keep 64", "--keep 6"),
        ("--square 64", "--square 4"),
        ("keep=64", "keep=6"),
        ("square=64", "square=4"),
        ("--keep-values 64", "--keep-values 6"),
        ("--sweep 96x96,64x64,48x48", "--sweep 8x6,6x4"),
        ("--tokens 64k -o OUT", "--tokens 1k --limit 4 --no-benchmark -o OUT"),
        ("--tokens 64k", "--tokens 1k"),
        ("tokens=65536", "tokens=1024"),
        ('tokens="64k", out=', "tokens=1024, limit=4, benchmark=False, out="),
        ("--tokens 64m", "--tokens 1k --length 64 --batch-size 4"),
    ):
        command = command.replace(said, meant)
    return command


@pytest.mark.timeout(1800)  # some twenty commands, each of which imports torch
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_page_runs(
    page: str,
    checkpoint: Any,
    tmp_path: Path,
    fresh: Fresh,  # noqa: F811
) -> None:
    shutil.copytree(checkpoint("qwen3_5_text"), tmp_path / "MODEL")
    tiny.write_text(tmp_path / "text.jsonl", 2**16)
    data = tmp_path / "DATA" / "squad"
    data.mkdir(parents=True)
    (data / "rows.jsonl").write_text('{"text": "w1 w2 w3", "value": "w4"}\n' * 4)
    commands = [
        line.removeprefix("$ ").partition("#")[0].strip()
        for block in blocks(page, "console")
        for line in block.splitlines()
        if line.startswith("$ ")
    ]
    ours = [command for command in commands if not command.startswith((*SETUP, *ELSEWHERE))]
    assert len(ours) >= 3
    for command in ours:
        result = fresh.run(tiny_version(command), tmp_path)
        assert result.returncode == 0, (command, result.stderr)
    for number, code in enumerate(blocks(page, "python")):
        shutil.rmtree(tmp_path / "SMALL", ignore_errors=True)
        (tmp_path / f"code{number}.py").write_text(tiny_version(code))
        result = fresh.run(f"python code{number}.py", tmp_path)
        assert result.returncode == 0, result.stderr
