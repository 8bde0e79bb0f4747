"""Without `fcntl`, as on Windows, writing is refused; numpy is not needed at all."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CUT = ("--method", "l1", "--value-method", "readout_l1", "--to", "8x100%")


def statetrim(missing: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment without the module `missing`."""
    hidden = f"import sys; sys.modules[{missing!r}] = None"
    program = f"{hidden}; from statetrim.commands import main; main()"
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)


def test_a_model_is_inspected(checkpoint: Callable[[str], Path]) -> None:
    ran = statetrim("fcntl", "inspect", checkpoint("qwen3_next"), "--to", "8x100%")
    assert ran.returncode == 0, ran.stderr
    assert "layers have a state" in ran.stdout


def test_writing_is_refused_in_a_sentence(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "plan.json"
    ran = statetrim("fcntl", "select", checkpoint("qwen3_next"), *CUT, "-o", out)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("statetrim: on Windows statetrim only inspects")
    assert not out.parent.exists()


def test_a_model_is_cut_without_numpy(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """torch does not install it."""
    model, plan = checkpoint("qwen3_next"), tmp_path / "plan.json"
    for words in (
        ("select", model, *CUT, "-o", plan),
        ("prune", model, plan, "-o", tmp_path / "x"),
    ):
        ran = statetrim("numpy", *words)
        assert ran.returncode == 0, ran.stderr
