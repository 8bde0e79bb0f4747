"""Tests of every family that transformers or statetrim.portable can run on a CPU."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers import tiny
from helpers.masking import masked
from helpers.tiny import Load
from statetrim.artifacts.plan import AxisPlan
from statetrim.families import families

KEEP, KEEP_VALUES = 8, 4
TOKENS = 40
AXES: dict[str, tuple[int | None, int | None]] = {
    "keys": (KEEP, None),
    "values": (None, KEEP_VALUES),
    "both": (KEEP, KEEP_VALUES),
}
NO_VALUES = {"kda"}  # refused: see test_prune
Case = tuple[str, st.Checkpoint, st.Plan, Path]
"""Model type, original, plan for it, directory of the pruned checkpoint."""


def random_plan(
    model: st.Checkpoint, keep: int | None, keep_values: int | None = None, seed: int = 1
) -> st.Plan:
    """A random plan, which keeps different channels in different layers and heads."""
    plan = st.select(model, "rand", f"{keep or '100%'}x{keep_values or '100%'}", seed=seed)
    for chosen in plan.axes.values():
        # A few heads may agree by chance, because there are few channels.
        tables = torch.stack([table for layer in chosen.kept.values() for table in layer])
        assert len(tables.unique(dim=0)) > 0.8 * len(tables)
    return plan


def load_stock(cls: Any, path: Path, without: str = "nothing") -> torch.nn.Module:
    """The model in a class of transformers, which must know all tensors, or all but `without`."""
    model, info = cls.from_pretrained(path, output_loading_info=True)
    info["unexpected_keys"] = [key for key in info["unexpected_keys"] if without not in key]
    assert not any(info.values()), info
    return model.eval()


def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(2, tiny.VOCABULARY, (2, TOKENS), generator=generator)


def decode(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """Logits [batch, time, vocabulary], computed one token at a time with a cache."""
    has_params = "cache_params" in inspect.signature(model.forward).parameters
    argument = "cache_params" if has_params else "past_key_values"
    cache, logits = None, []
    for step in range(ids.shape[1]):
        extra = {} if has_params else {"position_ids": torch.full((len(ids), 1), step)}
        out = model(ids[:, step : step + 1], use_cache=True, **{argument: cache}, **extra)
        cache = getattr(out, argument)
        logits.append(out.logits)
    return torch.cat(logits, dim=1)


ALL_AXES = [
    f"{model_type} {'keys' if model_type in NO_VALUES else 'both'}"
    for model_type in (*tiny.MODEL_TYPES, *tiny.NESTED_TYPES)
]
"""Each model type with all axes cut that it allows."""
ONE_AXIS = [
    f"{model_type} {axis}"
    for model_type in ("gated_deltanet", "qwen3_next", "olmo_hybrid", "mamba2")
    for axis in ("keys", "values")
]
"""One axis alone: of separate and fused projections, of a split convolution, and of Mamba-2."""


@pytest.fixture(scope="module", params=ALL_AXES + ONE_AXIS)
def case(
    request: pytest.FixtureRequest, checkpoint: Load, tmp_path_factory: pytest.TempPathFactory
) -> Case:
    model_type, axes = request.param.split()
    model = st.open(checkpoint(model_type))
    plan = random_plan(model, *AXES[axes])
    out = tmp_path_factory.mktemp("pruned") / model_type
    st.prune(model, plan, out)
    return model_type, model, plan, out


def test_stock_class_loads_it_and_equals_the_masked_original(case: Case) -> None:
    model_type, model, plan, out = case
    assert len(model.shards) >= 2
    cls = tiny.stock_class(model_type)
    original, pruned = load_stock(cls, model.path), load_stock(cls, out)
    with torch.no_grad():
        with masked(original, plan, model.geometry):
            expected = original(tokens()).logits
        actual = pruned(tokens()).logits
        unpruned = original(tokens()).logits
    assert expected.std() > 0.1
    assert (unpruned - expected).abs().max() > 1e-2, "the mask must matter"
    # Mamba-2 neither normalizes nor scales keys, so removing a channel equals masking it exactly.
    exact = "mamba" in str(model.family.mixer_prefixes) and "value" not in plan.axes
    tolerance = 0.0 if exact else 1e-4
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("model_type", [t for t in tiny.ONE_OF_EACH_MIXER if t not in NO_VALUES])
def test_folding_the_norm_alone_changes_nothing_but_rounding(
    model_type: str, checkpoint: Load, tmp_path: Path
) -> None:
    """Two plans keep the same keys; one also lists all values, so that pruning folds the norm."""
    model = st.open(checkpoint(model_type))
    plan = random_plan(model, KEEP)
    all_channels = torch.arange(model.geometry.head_v_dim).repeat(model.geometry.heads("value"), 1)
    values = AxisPlan(dict.fromkeys(plan.layers, all_channels), "none")
    folding = replace(plan, axes={**plan.axes, "value": values})
    cls = tiny.stock_class(model_type)
    paths = [st.prune(model, p, tmp_path / n).path for n, p in (("a", plan), ("b", folding))]
    plain, folded = (load_stock(cls, path) for path in paths)
    with torch.no_grad():
        # Every weight of the output projections is rounded once more, to float32.
        torch.testing.assert_close(
            folded(tokens()).logits, plain(tokens()).logits, rtol=0, atol=5e-5
        )
    shared = [
        name for name, o in model.channel_rows.items() if o.channel_rows[0].role == "shared_norm"
    ]
    before, after = tiny.tensors(paths[0]), tiny.tensors(paths[1])
    assert bool(shared) == ("mamba" not in str(model.family.mixer_prefixes))
    for name in shared:
        assert not torch.equal(before[name], torch.ones_like(before[name]))
        assert torch.equal(after[name], torch.ones_like(after[name]))


@pytest.mark.parametrize("case", ALL_AXES, indirect=True)
def test_prefill_equals_decode_and_it_generates(case: Case) -> None:
    model_type, _, _, out = case
    pruned = load_stock(tiny.stock_class(model_type), out)
    ids = tokens()[:, :20]
    with torch.no_grad():
        torch.testing.assert_close(decode(pruned, ids), pruned(ids).logits, rtol=0, atol=1e-4)
        generated = pruned.generate(ids, max_new_tokens=4, do_sample=False)
    assert generated.shape == (2, 24)


@pytest.mark.parametrize("model_type", tiny.VISION_TYPES)
def test_vision_language_types_load_as_text_models_too(
    model_type: str, checkpoint: Load, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model, out = st.open(checkpoint(model_type)), tmp_path / "out"
    st.prune(model, random_plan(model, KEEP), out)
    text_model = load_stock(AutoModelForCausalLM, out, without="visual")
    full_model = load_stock(tiny.stock_class(model_type), out)
    with torch.no_grad():
        torch.testing.assert_close(text_model(tokens()).logits, full_model(tokens()).logits)


def test_untouched_tensors_are_the_originals_byte_for_byte(case: Case) -> None:
    _, model, plan, out = case
    before, after = tiny.tensors(model.path), tiny.tensors(out)
    assert before.keys() == after.keys()
    cut = {name for name in before if before[name].shape != after[name].shape}
    pruned_axes = set(plan.axes)
    expected = set()
    for name, owner in model.channel_rows.items():
        if pruned_axes & {rows.axis for rows in owner.channel_rows}:
            expected.add(name)
    assert cut == expected
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - cut)


@pytest.mark.parametrize("case", ALL_AXES, indirect=True)
def test_every_smaller_width_reads_back_from_the_edited_config(case: Case) -> None:
    _, model, _, _ = case
    for keep in range(1, model.geometry.head_k_dim):
        after = model.geometry.resized(keep)
        assert model.family.geometry(model.family.resized(model.config, after)) == after
        assert after == replace(model.geometry, head_k_dim=keep)
    for keep in range(1, model.geometry.head_v_dim):
        after = model.geometry.resized(None, keep)
        try:
            edited = model.family.resized(model.config, after)
        except st.StatetrimError as error:  # Mamba-2, where `expand` must stay whole
            assert "can only be cut to 4 per head" in str(error) and keep != 4
            continue
        assert model.family.geometry(edited) == after


@pytest.mark.parametrize("case", ALL_AXES, indirect=True)
def test_claims_cover_each_row_once_and_within_the_tensor(case: Case) -> None:
    _, model, _, _ = case
    for name, owner in model.channel_rows.items():
        rows = torch.cat([entry.rows.flatten() for entry in owner.channel_rows])
        dim = owner.channel_rows[0].dim
        assert len(rows.unique()) == len(rows), name
        assert rows.min() >= 0 and rows.max() < model.tensors[name][1].shape[dim], name
        assert all(entry.dim == dim for entry in owner.channel_rows)


def test_values_and_their_gate_are_told_apart(checkpoint: Load) -> None:
    """qwen3_next, per key head of 12 channels: [ q | k | v v | z z ], values of 8 channels."""
    model = st.open(checkpoint("qwen3_next"))
    fused = model.tensor("model.layers.0.linear_attn.in_proj_qkvz.weight").double()
    written, read = model.value_output_weights(0)
    assert torch.equal(written.squeeze(2), fused.unflatten(0, (2, 56))[:, 24:40].reshape(4, 8, 32))
    output = model.tensor("model.layers.0.linear_attn.out_proj.weight").double()
    assert torch.equal(read.squeeze(2), output.mT.unflatten(0, (4, 8)))


def test_every_supported_model_type_is_under_this_contract() -> None:
    from helpers.fla_worker import CONFIGS as FLA_CONFIGS

    only_heads = {*tiny.HEAD_CONFIGS, "glm5_next_text"}  # test_heads
    assert set(families()) == set(tiny.CONFIGS) | set(FLA_CONFIGS) | only_heads
