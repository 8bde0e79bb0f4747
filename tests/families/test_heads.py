"""Removing whole heads: the same tests for every family whose config can express it.

The expected output does not depend on our row tables: it is that of the stock model with the output
projection's columns of the removed heads set to zero. In Mamba-2 these heads are masked before the
norm, which runs over the heads together.
"""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from families.test_families import NO_VALUES, decode, load_stock, tokens
from helpers import raw, tiny
from helpers.masking import for_all_heads, masked, output_projections
from helpers.tiny import Load
from statetrim.cut.geometry import allowed_head_counts, resolve_heads
from statetrim.families import families
from statetrim.families.contract import resized_config
from statetrim.surgery.check import compare_cut

WHOLE_EXPAND = ("mamba2", "bamba", "granitemoehybrid", "zamba2")
"""Half of the heads is all that their config takes; then it takes no narrower values."""
NO_HEAD_ROWS = ("rwkv6",)
HEADS_AND_CHANNELS = tuple(
    name
    for name in tiny.CONFIGS
    if not families()[name].head_refusal({"model_type": name, **tiny.CONFIGS[name]})
)
"""Those that run here; test_fla_loading has comba, gated_deltaproduct and gla."""
MIXER_OUTPUT = re.compile(
    r"(?!.*vision).*layers\.(\d+)\.(?:linear_attn|self_attn|attn)\.(?:o|out)_proj"
)
THREE_KEY_HEADS = {
    "qwen3_next": {"linear_num_key_heads": 3, "linear_num_value_heads": 6},
    "qwen3_5_text": {"linear_num_key_heads": 3, "linear_num_value_heads": 6},
    "gated_deltanet": {"num_heads": 3, "num_v_heads": 6},
    "kda": {"num_heads": 3, "num_v_heads": 6},
}


def random_heads(model: st.Checkpoint, keep: int, seed: int = 2) -> st.Plan:
    return st.select(model, to=f"{keep}heads", method="rand", seed=seed, progress=False)


def fewest_heads(model: st.Checkpoint) -> int:
    """The lowest count of heads that the model's config can express."""
    for keep in allowed_head_counts(model.geometry):
        with suppress(st.StatetrimError):
            resized_config(model.family, model.config, resolve_heads(keep, model.geometry))
            return keep
    raise AssertionError("no count of heads is possible")


def masked_logits(model_type: str, model: Any, plan: st.Plan, before: st.Geometry) -> torch.Tensor:
    """Logits of the loaded original with what the plan removes masked."""
    if not families()[model_type].norm_over_heads:
        zero_removed_heads(model, plan, before.head_v_dim)
        if set(plan.axes) == {"head"}:
            return model(tokens()).logits  # type: ignore[no-any-return]
    with masked(model, for_all_heads(plan, before), before):
        logits: torch.Tensor = model(tokens()).logits
    return logits


def zero_removed_heads(model: torch.nn.Module, plan: st.Plan, width: int) -> None:
    """Set the output projection's columns of the removed heads to zero, in the loaded model."""
    projections = output_projections(model, plan, MIXER_OUTPUT)
    for layer, projection in zip(sorted(plan.layers), projections, strict=True):
        weight = projection.weight.data.unflatten(1, (-1, width))  # type: ignore[operator]
        removed = set(range(weight.shape[1])) - set(
            plan.axes["head"].kept[layer].flatten().tolist()
        )
        weight[:, sorted(removed)] = 0.0


def check_pruned(model_type: str, model: st.Checkpoint, plan: st.Plan, out: Path) -> st.Checkpoint:
    """The pruned checkpoint loads in the stock class, equals the original with what goes masked,
    and decodes as it prefills."""
    small = st.prune(model, plan, out, progress=False)
    assert small.geometry == plan.pruned_geometry(model.geometry)
    cls = tiny.stock_class(model_type)
    original, pruned = load_stock(cls, model.path), load_stock(cls, out)
    with torch.no_grad():
        unmasked, actual = original(tokens()).logits, pruned(tokens()).logits
        expected = masked_logits(model_type, original, plan, model.geometry)
        assert (unmasked - expected).abs().max() > 1e-2, "what is cut must matter"
        if set(plan.axes) == {"head"}:
            # Float32: with fewer heads, matrix products sum in another order.
            assert (actual - expected).norm() < 1e-5 * expected.norm()
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
        ids = tokens()[:, :12]
        torch.testing.assert_close(decode(pruned, ids), pruned(ids).logits, rtol=0, atol=1e-4)
    before, after = tiny.tensors(model.path), tiny.tensors(out)
    cut = {name for name in before if before[name].shape != after[name].shape}
    assert cut <= {*model.head_rows, *(model.channel_rows if len(plan.axes) > 1 else ())}
    if "value" not in plan.axes:  # for which a norm is folded
        assert all(torch.equal(before[name], after[name]) for name in before.keys() - cut)
    return small


@pytest.mark.parametrize("model_type", [*tiny.MODEL_TYPES, *tiny.HEAD_CONFIGS])
def test_a_cut_of_heads_equals_the_original_with_their_columns_zeroed(
    model_type: str, checkpoint: Load, tmp_path: Path
) -> None:
    model = st.open(checkpoint(model_type))
    plan = random_heads(model, fewest_heads(model))
    check_pruned(model_type, model, plan, tmp_path / "out")


@pytest.mark.parametrize("model_type", HEADS_AND_CHANNELS)
def test_a_cut_of_heads_and_channels_equals_the_original_with_both_masked(
    model_type: str, checkpoint: Load, tmp_path: Path
) -> None:
    model = st.open(checkpoint(model_type))
    check_both(model_type, model, fewest_heads(model), tmp_path / "out")


def check_both(model_type: str, model: st.Checkpoint, keep: int, out: Path) -> None:
    before = model.geometry
    values = "100%" if model_type in (*NO_VALUES, *WHOLE_EXPAND) else before.head_v_dim // 2
    plan = st.select(model, "rand", f"{keep}heads:{before.head_k_dim // 2}x{values}", seed=2)
    small = check_pruned(model_type, model, plan, out)
    assert (small.geometry.num_v_heads, small.geometry.head_k_dim) == (keep, before.head_k_dim // 2)
    assert compare_cut(model, plan, small).sliced_against_masked < 1e-4


@pytest.mark.parametrize("model_type", THREE_KEY_HEADS)
@pytest.mark.parametrize(("keep", "key_heads"), [(2, 1), (3, 3), (4, 2)])
def test_heads_go_in_groups_or_evenly_from_each(
    model_type: str, keep: int, key_heads: int, tmp_path: Path
) -> None:
    """Six value heads share three key heads: remove whole key heads, or one value head of each."""
    path = tiny.build(model_type, tmp_path / "model", **THREE_KEY_HEADS[model_type])
    model = st.open(path)
    assert allowed_head_counts(model.geometry) == [2, 3, 4]
    plan = random_heads(model, keep)
    after = plan.pruned_geometry(model.geometry)
    assert (after.num_k_heads, after.num_v_heads) == (key_heads, keep)
    if model_type == "qwen3_next" or keep == 4:
        check_pruned(model_type, model, plan, tmp_path / "out")
    if keep == 4:
        check_both(model_type, model, keep, tmp_path / "both")


@pytest.mark.parametrize("model_type", [*raw.CONFIGS, *tiny.HEAD_CONFIGS])
def test_every_head_count_reads_back_from_the_edited_config(model_type: str) -> None:
    config: dict[str, Any] = raw.CONFIGS.get(model_type) or {
        "model_type": model_type,
        **tiny.HEAD_CONFIGS[model_type],
    }
    family = families()[model_type]
    before = family.geometry(config)
    if reason := family.head_refusal(config):
        with pytest.raises(st.StatetrimError, match=reason):
            resized_config(family, config, before.with_heads(1, before.group))
        return
    if not family.head_rows(config, before):
        assert model_type in NO_HEAD_ROWS
        return
    possible = 0
    for keep in allowed_head_counts(before):
        after = resolve_heads(keep, before)
        assert after.num_v_heads == keep
        if not family.norm_over_heads:
            assert family.geometry(resized_config(family, config, after)) == after
            continue
        with suppress(st.StatetrimError):  # Mamba-2 keeps its groups, and a whole `expand`
            assert family.geometry(resized_config(family, config, after)) == after
            possible += 1
    assert possible > 0 or not family.norm_over_heads


@pytest.mark.parametrize("model_type", [*tiny.MODEL_TYPES, *tiny.HEAD_CONFIGS])
def test_claims_cover_each_entry_of_a_head_once(model_type: str, checkpoint: Load) -> None:
    model = st.open(checkpoint(model_type))
    for name, owner in model.head_rows.items():
        rows = torch.cat([entry.rows.flatten() for entry in owner.channel_rows])
        dim = owner.channel_rows[0].dim
        assert sorted(rows.tolist()) == list(range(model.tensors[name][1].shape[dim])), name
        heads = {"key": model.geometry.num_k_heads, "value": model.geometry.num_v_heads}
        assert all(len(entry.rows) == heads[entry.axis] for entry in owner.channel_rows), name


def test_the_nested_section_of_a_hub_config_is_edited_too(checkpoint: Load, tmp_path: Path) -> None:
    """The section overrides the top-level field in transformers; vLLM and MLX-LM read only it."""
    model = st.open(checkpoint("kimi_linear"))
    section = {"head_dim": 12, "num_heads": 4, "short_conv_kernel_size": 4}
    config = model.config | {"linear_attn_config": section}
    family = model.family
    after = resolve_heads(3, family.geometry(config))
    edited = resized_config(family, config, after)
    assert edited["linear_attn_config"] == section | {"num_heads": 3}
    assert edited["linear_num_heads"] == 3


@pytest.mark.parametrize("model_type", tiny.HEAD_CONFIGS)
def test_their_channels_cannot_be_cut(model_type: str, checkpoint: Load) -> None:
    model = st.open(checkpoint(model_type))
    for to in ("8x100%", "100%x8", "8x8"):
        with pytest.raises(st.StatetrimError, match=r"whole heads can go instead: --to 8heads"):
            st.select(model, "rand", to)


def test_an_inner_width_of_null_follows_from_expand() -> None:
    """In transformers' Falcon-H1 an absent `mamba_d_ssm` is 1024."""
    config = {"model_type": "falcon_h1", **tiny.CONFIGS["falcon_h1"], "mamba_d_head": "auto"}
    family = families()["falcon_h1"]
    config |= {"mamba_d_ssm": None, "mamba_expand": 2, "hidden_size": 32}
    assert family.geometry(config).head_v_dim == 2 * 32 // 8
    del config["mamba_d_ssm"]
    assert family.geometry(config).head_v_dim == 1024 // 8
