"""Benchmarks, studies and tools are run by hand; here, that what they import is still there."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = """
import runpy, sys
for path in sys.argv[1:]:
    sys.path.insert(0, path.rpartition("/")[0])
    print(path, flush=True)
    runpy.run_path(path, run_name="not main")
"""


def test_every_script_starts() -> None:
    """In one process of its own, since some set threads and the environment for themselves."""
    folders = ("benchmarks", "studies", "studies/paper", "tools", "tools/engines")
    paths = [path for folder in folders for path in sorted((ROOT / folder).glob("*.py"))]
    names = [str(path) for path in paths]
    assert len(names) > 20
    done = subprocess.run(
        [sys.executable, "-c", START, *names], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()[-3:]
