"""The example of CONTRIBUTING.md for a report section works as it is printed there."""

import re
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from statetrim.reporting import sections

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_example_of_a_section_is_in_the_report(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chapter = CONTRIBUTING.read_text().partition("## Add a report section")[2]
    code = re.search(r"```python\n(.*?)```", chapter, re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {"__package__": sections.__name__}
    exec(code[1], names)
    monkeypatch.setitem(sections.SECTIONS, "Heads", names["blocks"])
    _, cut = pair("qwen3_5_text", method="rand")
    page = st.report(cut, out=tmp_path / "out").with_suffix(".md").read_text()
    section = page.partition("\n## Heads\n")[2].partition("\n## ")[0]
    rows = re.findall(r"\| (keys|values) \| (\d+) \|", section)
    heads = cut.geometry
    assert rows == [("keys", str(heads.num_k_heads)), ("values", str(heads.num_v_heads))]
