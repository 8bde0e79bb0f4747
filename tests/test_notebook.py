"""The notebook in examples/ runs from top to bottom, with its pictures."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import statetrim as st

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first-cut.ipynb"


@pytest.mark.filterwarnings("ignore")  # of matplotlib, which has no window here
def test_its_cells_run_on_less_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: the cut must beat the random cut."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names: dict[str, Any] = {}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.cell_type == "code":
            few = cell.source.replace('"32k"', '"4k"').replace("limit=64", "limit=8")
            exec(few, names)
    check_scores(tmp_path)


def check_scores(folder: Path) -> None:
    scores = st.Scores.load(folder / "scores.json")
    kept, chance = (scores.find(n, "mqar", "pairs_32").value for n in ("SMALL", "RANDOM"))
    assert kept > chance + 0.2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Jupyter warns about event loops
def test_the_notebook_runs(tmp_path: Path) -> None:
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, timeout=300).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    shown = [kind for out in outputs for kind in out.get("data", {})]
    assert shown.count("image/png") == 1 and "text/html" in shown
    assert any("iframe" in str(out.get("data", {}).get("text/html")) for out in outputs)
    check_scores(tmp_path)


def test_no_outputs_are_stored() -> None:
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
