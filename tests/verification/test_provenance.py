"""Comparing a cut with original and plan finds a permuted channel in any tensor."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from statetrim.artifacts.plan import load_carried_plan
from statetrim.errors import StatetrimError
from statetrim.verification import provenance

CUT = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe", "olmo_hybrid", "mamba2", "zamba2",
       "delta_net", "gated_deltanet", "kda")  # fmt: skip


def prune(model: st.Checkpoint, out: Path) -> st.Checkpoint:
    try:
        plan = st.select(model, "rand", "6x4", value_method="rand")
    except StatetrimError:  # KDA supports pruning of keys only
        plan = st.select(model, "rand", "6x100%")
    return st.prune(model, plan, out)


def faults(model: st.Checkpoint, small: st.Checkpoint) -> list[str]:
    plan = load_carried_plan(small)
    assert plan is not None
    return [
        *provenance.config_faults(model, small, plan),
        *provenance.weight_faults(model, small, plan),
    ]


@pytest.mark.parametrize("model_type", CUT)
def test_every_cut_tensor_is_compared(
    model_type: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = st.open(checkpoint(model_type))
    small = prune(model, tmp_path / "small")
    assert faults(model, small) == []
    last = max(model.geometry.layers)
    for name, owner in small.channel_rows.items():
        claim = owner.channel_rows[-1]
        if owner.layer != last or claim.role == "shared_norm":
            continue
        broken = tmp_path / "broken"
        shutil.copytree(small.path, broken)
        pair = claim.rows[-1, :2]

        def swapped(
            tensor: torch.Tensor, dim: int = claim.dim, two: torch.Tensor = pair
        ) -> torch.Tensor:
            order = torch.arange(tensor.shape[dim])
            order[two] = two.flip(0)
            return tensor.index_select(dim, order)

        tiny.rewrite(broken, name, swapped)
        messages = faults(model, st.open(broken))
        assert len(messages) == 1 and f"layer {last}: 2 of" in messages[0] and name in messages[0]
        shutil.rmtree(broken)


def test_a_refit_passes_and_a_permutation_after_it_does_not(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    text = tiny.write_text(tmp_path / "text.jsonl", 4000)
    model = st.open(checkpoint("qwen3_5_text"))
    small = prune(model, tmp_path / "small")
    sums = st.calibrate(small, text, original=model, tokens=3000, length=50)
    refitted = st.refit(small, sums, out=tmp_path / "refitted")
    assert faults(model, refitted) == []
    name = next(n for n, o in small.channel_rows.items() if o.channel_rows[0].role == "o_proj")
    tiny.rewrite(refitted.path, name, lambda tensor: tensor.roll(1, dims=1))
    (fault,) = faults(model, st.open(refitted.path))
    assert name in fault and "trained after the cut" in fault


def test_what_a_recovery_trained_may_differ_but_not_move(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    small = prune(model, tmp_path / "small")
    name = next(n for n, o in small.channel_rows.items() if o.channel_rows[0].role == "q_proj")
    record: Any = {"format": "statetrim recover", "version": 1, "trained_tensors": [name]}
    tiny.edit_json(small.path / "statetrim" / "recover.json", **record)
    tiny.rewrite(small.path, name, lambda tensor: tensor + 0.05 * torch.randn_like(tensor))
    assert faults(model, st.open(small.path)) == []
    tiny.rewrite(small.path, name, lambda tensor: tensor.flip(0))
    (fault,) = faults(model, st.open(small.path))
    assert name in fault


def test_a_changed_config_is_named(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    small = prune(model, tmp_path / "small")
    tiny.edit_json(small.path / "config.json", linear_key_head_dim=8, rms_norm_eps=1e-5)
    plan = load_carried_plan(small)
    assert plan is not None
    assert list(provenance.config_faults(model, st.open(small.path), plan)) == [
        "config field 'linear_key_head_dim' is 8, and this cut needs 6",
        "config field 'rms_norm_eps' is 1e-05, and this cut needs 1e-06",
    ]
