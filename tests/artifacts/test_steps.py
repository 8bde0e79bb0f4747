"""What a cut's own records say of where it comes from."""

from collections.abc import Callable
from pathlib import Path

import pytest

import statetrim as st
from statetrim.artifacts.steps import read_origin


@pytest.mark.parametrize(("to", "method"), [("6x100%", "method"), ("2heads", "head_method")])
def test_a_random_cut_is_known_by_its_method(
    to: str, method: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    plan = st.select(model, to=to, **({method: "rand"}))  # type: ignore[arg-type]
    cut = st.prune(model, plan, tmp_path / "cut")
    origin = read_origin(cut, model)
    assert origin is not None
    assert origin["methods"] == ["rand"]
