"""Quantised cuts are verified in transformers, as they are stored."""

from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.quantized import FORMATS, quantize_checkpoint
from statetrim.verification.drivers.ask_transformers import Engine

SIZES = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("qwen3_5_text", tmp_path_factory.mktemp("models") / "original", **SIZES)


def cut_of(model: Path, plan_source: Path, out: Path) -> Path:
    plan = st.select(plan_source, "l1,readout_l1", "8x8")
    return st.prune(model, plan, out).path


def test_transformers_loads_the_cut_as_it_is_stored(
    original: Path, text: Path, tmp_path: Path
) -> None:
    """With the plan of the 16-bit sibling, in a process of this environment's Python."""
    model = quantize_checkpoint(original, tmp_path / "model", FORMATS["fp8 by row"])
    cut = cut_of(model, original, tmp_path / "cut")
    verification = st.verify(
        cut, baseline=model, engine="transformers", text=text, count=4, length=24, generate=4
    )
    assert verification.faults == {} and verification.notes == {}
    assert verification.version.startswith("transformers ")
    for agreement in verification.agreements:
        assert agreement.share() > 0.95
        assert agreement.largest_difference is None or agreement.largest_difference < 0.1


def test_a_format_that_transformers_does_not_know_is_refused_by_its_name(
    original: Path, tmp_path: Path
) -> None:
    """It would load the codes as weights."""
    model = quantize_checkpoint(original, tmp_path / "model", FORMATS["modelopt fp8"])
    request = {"model": str(model), "dtype": "float32", "options": {}}
    refusal = pytest.raises(SystemExit, match="transformers cannot load quant_method 'modelopt'")
    with torch.enable_grad(), refusal:  # the driver turns gradients off
        Engine(request)


def test_an_adapter_next_to_the_weights_is_refused_before_the_engine_starts(
    original: Path, text: Path, tmp_path: Path
) -> None:
    cut = cut_of(original, original, tmp_path / "cut")
    (cut / "adapter_config.json").write_text("{}")
    with pytest.raises(st.StatetrimError, match=r"adapter_config\.json"):
        st.verify(
            cut, baseline=original, engine="transformers", engine_python="nowhere", text=text,
            count=2, length=24, generate=2,
        )  # fmt: skip
