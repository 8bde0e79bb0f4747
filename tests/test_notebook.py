"""The notebook in examples/ runs from top to bottom, with its pictures."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from statetrim.pipelines import demo_model

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first-cut.ipynb"


@pytest.mark.filterwarnings("ignore")  # Jupyter warns about event loops
@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(10, id="hardly trained"),
        pytest.param(demo_model.STEPS, id="trained", marks=pytest.mark.slow),
    ],
)
def test_the_notebook_runs(steps: int, tmp_path: Path) -> None:
    """With the marker `slow` the model is fully trained, and the cut must beat the random cut."""
    demo_model.train(tmp_path / "MODEL", lambda progress: None, steps=steps)
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, timeout=300).execute()
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    shown = [kind for out in outputs for kind in out.get("data", {})]
    assert shown.count("image/png") == 1 and "text/html" in shown
    assert any("iframe" in str(out.get("data", {}).get("text/html")) for out in outputs)
    if steps == demo_model.STEPS:
        import statetrim as st

        scores = st.Scores.load(tmp_path / "scores.json")
        kept, chance = (scores.find(n, "mqar", "pairs_16").value for n in ("SMALL", "RANDOM"))
        assert kept > chance


def test_no_outputs_are_stored() -> None:
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
