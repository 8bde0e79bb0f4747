"""The notebook in examples/ runs from top to bottom, with its pictures."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import statetrim as st

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first-cut.ipynb"


@pytest.mark.filterwarnings("ignore")  # Jupyter warns about event loops
def test_the_notebook_runs(tmp_path: Path) -> None:
    """The cut must beat the random cut."""
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, timeout=300).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    shown = [kind for out in outputs for kind in out.get("data", {})]
    assert shown.count("image/png") == 1 and "text/html" in shown
    assert any("iframe" in str(out.get("data", {}).get("text/html")) for out in outputs)
    scores = st.Scores.load(tmp_path / "scores.json")
    kept, chance = (scores.find(n, "mqar", "pairs_32").value for n in ("SMALL", "RANDOM"))
    assert kept > chance + 0.2


def test_no_outputs_are_stored() -> None:
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
