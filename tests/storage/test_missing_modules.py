"""Without `fcntl`, as on Windows, writing is refused."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

PROGRAM = """
import sys
sys.modules["fcntl"] = None
model, out = sys.argv[1:]
from statetrim.commands import main
for words in (["inspect", model], ["select", model, "--method", "l1", "--to", "8x100%", "-o", out]):
    sys.argv = ["statetrim", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def test_a_model_is_inspected_and_writing_is_refused_in_a_sentence(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    out = tmp_path / "new" / "plan.json"
    command = [sys.executable, "-c", PROGRAM, checkpoint("qwen3_next"), out]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "layers have a state" in ran.stdout and ran.returncode == 2
    assert ran.stderr.splitlines()[-1].startswith("statetrim: on Windows statetrim only inspects")
    assert not out.parent.exists()
