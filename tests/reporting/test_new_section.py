"""The example of CONTRIBUTING.md for a report section works as it is printed there."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from statetrim.reporting import sections

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example is a module of the package, and its name is in ORDER."""
    chapter = CONTRIBUTING.read_text().partition("## Add a report section")[2]
    code = re.search(r"```python\n(.*?)```", chapter, re.DOTALL)
    assert code is not None
    (tmp_path / "heads.py").write_text(code[1])
    name = f"{sections.__name__}.heads"
    spec = importlib.util.spec_from_file_location(name, tmp_path / "heads.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sections, "ORDER", (*sections.ORDER, "heads"))


def test_the_example_of_a_section_is_in_the_report(
    example: None, checkpoint: Any, tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    cut = st.prune(model, st.select(model, "rand", to="6x100%"), tmp_path / "cut")
    page = st.report(cut, out=tmp_path / "out").with_suffix(".md").read_text()
    section = page.partition("\n## Heads\n")[2].partition("\n## ")[0]
    rows = re.findall(r"\| (keys|values) \| (\d+) \|", section)
    heads = cut.geometry
    assert rows == [("keys", str(heads.num_k_heads)), ("values", str(heads.num_v_heads))]
