"""Without `fcntl`, as on Windows, writing is refused; numpy is not needed at all."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CUT = ("--method", "l1,readout_l1", "--to", "8x100%")
PROGRAM = """
import json, sys
sys.modules[sys.argv[1]] = None
commands = json.loads(sys.argv[2])
from statetrim.commands import main
for words in commands:
    sys.argv = ["statetrim", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def statetrim(missing: str, *commands: tuple[str | Path, ...]) -> subprocess.CompletedProcess[str]:
    """Run commands in an environment without the module `missing`, until one fails."""
    program = [sys.executable, "-c", PROGRAM, missing, json.dumps(commands, default=str)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_a_model_is_inspected_and_writing_is_refused_in_a_sentence(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model, out = checkpoint("qwen3_next"), tmp_path / "new" / "plan.json"
    ran = statetrim(
        "fcntl", ("inspect", model, "--to", "8x100%"), ("select", model, *CUT, "-o", out)
    )
    assert "layers have a state" in ran.stdout
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("statetrim: on Windows statetrim only inspects")
    assert not out.parent.exists()


def test_a_model_is_cut_without_numpy(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """torch does not install it."""
    model, plan = checkpoint("qwen3_next"), tmp_path / "plan.json"
    cut = ("prune", model, plan, "-o", tmp_path / "x")
    ran = statetrim("numpy", ("select", model, *CUT, "-o", plan), cut)
    assert ran.returncode == 0, ran.stderr
