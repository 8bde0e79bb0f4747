"""Comparing a cut with the original passes for every family, and detects each kind of damage."""

import math
import shutil
from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.tiny import Load
from statetrim.runtime.placement import Placement
from statetrim.surgery import check as checks
from statetrim.surgery.check import TOLERANCE, _relative_gap, compare_cut

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


def cut(path: Path, out: Path) -> tuple[st.Checkpoint, st.Plan, st.Checkpoint]:
    model = st.open(path)
    plan = st.select(model, "rand", "50%x100%")
    return model, plan, st.prune(model, plan, out)


@pytest.mark.parametrize(
    ("model_type", "to", "tensor"),
    [
        *(("qwen3_next", "50%x100%", f"{name}.weight")
          for name in ("in_proj_qkvz", "conv1d", "out_proj")),
        ("nemotron_h", "4heads", "in_proj.weight"), ("nemotron_h", "4heads", "norm.weight"),
        ("nemotron_h", "4heads", "out_proj.weight"), ("nemotron_h", "4heads:6x4", "norm.weight"),
        ("qwen3_next", "100%x4", "out_proj.weight"),
    ],
)  # fmt: skip
def test_a_changed_tensor_is_noticed(
    model_type: str, to: str, tensor: str, checkpoint: Load, tmp_path: Path
) -> None:
    """Also behind the kernel, where heads or values that a norm runs over were removed."""
    model = st.open(checkpoint(model_type))
    plan = st.select(model, "rand", to)
    small = st.prune(model, plan, tmp_path / "small")
    assert compare_cut(model, plan, small).sliced_against_masked < 1e-5
    name = next(
        n
        for n in small.tensors
        if n.endswith(f".{tensor}") and ("mixer" in n or "linear_attn" in n)
    )
    values = tiny.tensors(small.path)[name]
    inner = small.geometry.num_v_heads * small.geometry.head_v_dim
    gate_or_all = values[:inner] if tensor == "in_proj.weight" else values
    changed = gate_or_all.roll(1, dims=-1 if tensor == "out_proj.weight" else 0)
    rest = values[len(changed) :]
    tiny.rewrite(small.path, name, lambda _: torch.cat([changed, rest]).contiguous())
    with pytest.raises(st.StatetrimError, match=r"layer \d+ of .* differs from the original"):
        compare_cut(model, plan, st.open(small.path))


def test_the_rounding_of_a_folded_norm_is_no_fault(checkpoint: Load, tmp_path: Path) -> None:
    """In the dtype of the output projection, whatever that of larger tensors is."""
    path = Path(shutil.copytree(checkpoint("qwen3_5_text"), tmp_path / "model"))
    for name in tiny.tensors(path):
        if ".linear_attn." in name:
            tiny.rewrite(path, name, lambda values: values.bfloat16())
    model = st.open(path)
    plan = st.select(model, "rand", "100%x4")
    gap = compare_cut(model, plan, st.prune(model, plan, tmp_path / "small")).sliced_against_masked
    assert gap < TOLERANCE


def test_another_plan_is_noticed(checkpoint: Load, tmp_path: Path) -> None:
    model, _, small = cut(checkpoint("delta_net"), tmp_path / "small")
    with pytest.raises(st.StatetrimError, match="differs from the original"):
        compare_cut(model, st.select(model, "rand", "50%x100%", seed=1), small)


def test_a_cache_that_forgets_is_noticed(
    checkpoint: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cut(checkpoint("qwen3_5_text"), tmp_path / "small")
    real = checks.load_live

    def forgetful(which: st.Checkpoint, placement: Placement) -> object:
        live = real(which, placement)
        forward = live.module.forward

        def forward_without_state(*args: object, **kwargs: object) -> object:
            answer = forward(*args, **kwargs)
            for layer in getattr(answer.past_key_values, "layers", []):
                states = getattr(layer, "recurrent_states", {})
                for state in states.values() if isinstance(states, dict) else [states]:
                    state.mul_(0.0 if which.path == job[2].path else 1.0)
            return answer

        live.module.forward = forward_without_state
        return live

    monkeypatch.setattr(checks, "load_live", forgetful)
    with pytest.raises(st.StatetrimError, match="decodes other logits than it prefills"):
        compare_cut(*job)


def test_logits_that_are_not_numbers_are_noticed(
    checkpoint: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = cut(checkpoint("delta_net"), tmp_path / "small")
    monkeypatch.setattr(checks, "_decode_gap", lambda *args: math.nan)
    with pytest.raises(st.StatetrimError, match="decodes other logits than it prefills"):
        compare_cut(*job)


def test_a_layer_whose_output_is_zero_is_equal(checkpoint: Load, tmp_path: Path) -> None:
    model = shutil.copytree(checkpoint("delta_net"), tmp_path / "model")
    for name in tiny.tensors(model):
        if ".1." in name and name.endswith(("v_proj.weight", "o_proj.weight")):
            tiny.rewrite(model, name, torch.zeros_like)
    assert compare_cut(*cut(model, tmp_path / "small")).sliced_against_masked < 1e-5


def test_a_gap_is_relative_to_the_largest_value() -> None:
    expected = torch.tensor([-20.0, 1.0])
    assert float(_relative_gap(expected, expected + 2)) == pytest.approx(0.1)
    assert math.isinf(_relative_gap(0 * expected, expected))
