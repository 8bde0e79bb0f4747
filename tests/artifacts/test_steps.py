"""What a cut's own records say of where it comes from."""

from collections.abc import Callable
from pathlib import Path

import pytest

import statetrim as st
from helpers.quantized import FORMATS, quantize_checkpoint
from statetrim.artifacts.steps import read_origin


@pytest.mark.parametrize("to", ["6x100%", "2heads"])
def test_a_random_cut_is_known_by_its_method(
    to: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    plan = st.select(model, "rand", to)
    cut = st.prune(model, plan, tmp_path / "cut")
    origin = read_origin(cut, model)
    assert origin is not None
    assert origin["methods"] == ["rand"]


def test_a_quantised_release_cut_by_the_plan_of_its_16_bit_model_is_the_source(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    plan = st.select(model, to="6x100%", method="rand")
    form = FORMATS["fine-grained fp8"]
    release = st.open(quantize_checkpoint(model.path, tmp_path / "fp8", form))
    origin = read_origin(st.prune(release, plan, tmp_path / "cut"), release)
    assert origin is not None
    assert origin["source"] == release.digest
