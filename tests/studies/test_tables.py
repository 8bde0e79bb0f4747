"""The result pages match the committed results: filling in their tables again changes nothing.
Imports of benchmarks, studies and tools, which are run by hand, work."""

import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from helpers.forker import Forker

ROOT = Path(__file__).parents[2]
STUDIES = (
    "demo", "front_page", "hybrids", "levers", "methods", "paper/ledger", "parts", "precision",
    "prefix_replay", "quantised_matrix", "recall", "recovery", "shapes",
    "snapshots", "uneven",
)  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_tables_follow_from_the_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, before = tmp_path / "results", dict[Path, str]()
    shutil.copytree(ROOT / "results", results, ignore=shutil.ignore_patterns("*.png", "upstream"))
    shutil.copy(ROOT / "README.md", tmp_path)
    for page in tmp_path.rglob("*.md"):
        before[page] = page.read_text()
    path = ROOT / "studies" / name
    monkeypatch.syspath_prepend(ROOT / "studies")
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.delitem(sys.modules, path.name, raising=False)  # a folder of tests: snapshots
    script = importlib.import_module(path.name)
    monkeypatch.setattr(script, "draw", lambda *_: None, raising=False)
    script.page(results)
    assert {page: page.read_text() for page in before} == before


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
