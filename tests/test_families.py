"""One contract, every family that transformers can run here."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import statetrim as st
import tiny
from masking import masked
from statetrim.families import families

KEEP = 8
TOKENS = 40
Load = Callable[[str], Path]


def random_plan(model: st.Checkpoint, keep: int, seed: int = 1) -> st.Plan:
    """Different channels in every layer and head."""
    plan = st.select(model, "rand", keep, seed=seed)
    tables = torch.stack([table for layer in plan.kept.values() for table in layer])
    assert len(tables.unique(dim=0)) == len(tables)
    return plan


def load_stock(cls: Any, path: Path) -> torch.nn.Module:
    model, info = cls.from_pretrained(path, output_loading_info=True)
    assert not any(info.values()), info
    return model.eval()


def tokens() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(2, tiny.VOCABULARY, (2, TOKENS), generator=generator)


def decode(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """Logits, one token at a time."""
    argument = (
        "cache_params" if "cache_params" in inspect.signature(model.forward).parameters else ""
    )
    argument = argument or "past_key_values"
    cache, logits = None, []
    for step in range(ids.shape[1]):
        extra = (
            {} if argument == "cache_params" else {"position_ids": torch.full((len(ids), 1), step)}
        )
        out = model(ids[:, step : step + 1], use_cache=True, **{argument: cache}, **extra)
        cache = getattr(out, argument)
        logits.append(out.logits)
    return torch.cat(logits, dim=1)


@pytest.fixture(scope="module", params=tiny.MODEL_TYPES)
def case(
    request: pytest.FixtureRequest, checkpoint: Load, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, st.Checkpoint, st.Plan, Path]:
    """Model type, the original, a plan for it, and where the pruned checkpoint is."""
    model = st.open(checkpoint(request.param))
    plan = random_plan(model, KEEP)
    out = tmp_path_factory.mktemp("pruned") / request.param
    st.prune(model, plan, out)
    return request.param, model, plan, out


def test_stock_class_loads_it_and_equals_the_masked_original(case: Any) -> None:
    model_type, model, plan, out = case
    assert len(model.shards) >= 2
    cls = tiny.stock_class(model_type)
    original, pruned = load_stock(cls, model.path), load_stock(cls, out)
    with torch.no_grad():
        with masked(original, dict(plan.kept), model.geometry.head_k_dim):
            expected = original(tokens()).logits
        actual = pruned(tokens()).logits
        unpruned = original(tokens()).logits
    assert expected.std() > 0.1
    assert (unpruned - expected).abs().max() > 1e-2, "the mask must matter"
    # Mamba-2 has neither norm nor scale over the channels: dropping is zeroing.
    tolerance = 0.0 if "mamba" in str(model.family.mixers) else 1e-4
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def test_prefill_equals_decode_and_it_generates(case: Any) -> None:
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
    text = load_stock_ignoring_vision(AutoModelForCausalLM, out)
    whole = load_stock(tiny.stock_class(model_type), out)
    with torch.no_grad():
        torch.testing.assert_close(text(tokens()).logits, whole(tokens()).logits)


def load_stock_ignoring_vision(cls: Any, path: Path) -> torch.nn.Module:
    model, info = cls.from_pretrained(path, output_loading_info=True)
    unexpected = {key for key in info.pop("unexpected_keys") if "visual" not in key}
    assert not unexpected and not any(info.values()), info
    return model.eval()


def test_untouched_tensors_are_the_originals_byte_for_byte(case: Any) -> None:
    _, model, _, out = case
    before, after = tensors_of(model.path), tensors_of(out)
    assert before.keys() == after.keys()
    cut = {name for name in before if before[name].shape != after[name].shape}
    assert cut == set(model.claims)
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - cut)


def tensors_of(path: Path) -> dict[str, Tensor]:
    return {k: v for file in path.glob("*.safetensors") for k, v in load_file(file).items()}


def test_every_smaller_width_reads_back_from_the_edited_config(case: Any) -> None:
    _, model, _, _ = case
    for keep in range(1, model.geometry.head_k_dim):
        after = model.geometry.resized(keep)
        assert model.family.geometry(model.family.resized(model.config, after)) == after
        assert after == replace(model.geometry, head_k_dim=keep)


def test_claims_cover_each_row_once_and_within_the_tensor(case: Any) -> None:
    _, model, _, _ = case
    for name, owner in model.claims.items():
        rows = torch.cat([claim.rows.flatten() for claim in owner.claims])
        assert len(rows.unique()) == len(rows), name
        assert rows.min() >= 0 and rows.max() < model.tensors[name][1].shape[0], name


def test_an_unknown_tensor_under_a_mixer_is_refused_by_name(case: Any, tmp_path: Path) -> None:
    model_type, model, _, _ = case
    name, owner = next(iter(model.claims.items()))
    mixer = name.removesuffix("." + owner.claims[0].tensor)
    stranger = copy_with(model.path, tmp_path / model_type, f"{mixer}.new_gate.weight")
    with pytest.raises(st.StatetrimError, match=r"new_gate\.weight.*refusing to guess"):
        st.select(st.open(stranger), "l1", KEEP)


def copy_with(source: Path, target: Path, extra: str) -> Path:
    """The checkpoint in one file, with one tensor more."""
    target.mkdir()
    save_file(tensors_of(source) | {extra: torch.zeros(3)}, target / "model.safetensors")
    (target / "config.json").write_text((source / "config.json").read_text())
    return target


def test_the_number_of_shards_does_not_matter(case: Any, tmp_path: Path) -> None:
    _, model, _, out = case
    single = tmp_path / "single"
    single.mkdir()
    save_file(tensors_of(model.path), single / "model.safetensors")
    (single / "config.json").write_text((model.path / "config.json").read_text())
    whole = st.open(single)
    st.prune(whole, random_plan(whole, KEEP), tmp_path / "out")
    one, many = tensors_of(tmp_path / "out"), tensors_of(out)
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_every_supported_model_type_is_under_this_contract() -> None:
    from fla_checkpoints import CONFIGS as FLA_CONFIGS

    only_described = {"kimi_linear"}
    assert set(families()) == set(tiny.CONFIGS) | set(FLA_CONFIGS) | only_described
