"""Without `fcntl`, as on Windows: models can be inspected, and writing is refused."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HIDDEN = "import sys; sys.modules['fcntl'] = None; from statetrim.commands import main; main()"


def statetrim(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", HIDDEN, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


def test_a_model_is_inspected(checkpoint: Callable[[str], Path]) -> None:
    ran = statetrim("inspect", checkpoint("qwen3_next"), "--to", "8x100%")
    assert ran.returncode == 0, ran.stderr
    assert "recurrent state" in ran.stdout


def test_writing_is_refused_in_a_sentence(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "plan.json"
    cut = ("--method", "l1", "--value-method", "readout_l1", "--to", "8x100%")
    ran = statetrim("select", checkpoint("qwen3_next"), *cut, "-o", out)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("statetrim: on Windows statetrim only inspects")
    assert not out.parent.exists()
