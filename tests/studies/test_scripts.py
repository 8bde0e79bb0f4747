"""Benchmarks, studies and tools are run by hand; these tests check that their imports work."""

import re
from pathlib import Path

from helpers.forker import Forker

ROOT = Path(__file__).parents[2]
START = """
import runpy, sys
for path in sys.argv[1:]:
    sys.path.insert(0, path.rpartition("/")[0])
    print(path, flush=True)
    runpy.run_path(path, run_name="not main")
"""


FOLDERS = ("benchmarks", "studies", "studies/paper", "studies/gpu", "tools", "tools/engines")
IN_ENGINES = re.compile(r"^(?:import|from) (?:vllm|sglang|xllamacpp|cyllama|mlx)", re.MULTILINE)
"""Scripts that run in an engine's own environment import it first."""
SCRIPTS = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).glob("*.py"))
    if not IN_ENGINES.search(path.read_text())
]


def test_every_script_starts(tmp_path: Path, warm_forker: Forker) -> None:
    """All in one separate process, because some set threads and environment variables."""
    (tmp_path / "start.py").write_text(START)
    names = [str(path) for path in SCRIPTS]
    assert len(names) > 20
    result = warm_forker.run([str(tmp_path / "start.py"), *names], script=True)
    assert result["code"] == 0, result["out"].splitlines()[-1:] + result["err"].splitlines()[-3:]
