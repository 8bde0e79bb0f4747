"""What a cut's own records say of where it comes from."""

from collections.abc import Callable
from pathlib import Path

import pytest

import statetrim as st
from statetrim.artifacts.origin import read_origin


@pytest.mark.parametrize(
    ("target", "method"),
    [({"keep": 6}, "method"), ({"keep_heads": 2}, "head_method")],
)
def test_a_random_cut_is_known_by_its_method(
    target: dict[str, int], method: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    plan = st.select(model, **target, **({method: "rand"}))  # type: ignore[arg-type]
    cut = st.prune(model, plan, tmp_path / "cut")
    origin = read_origin(cut, model)
    assert origin is not None
    assert origin["methods"] == ["rand"]
