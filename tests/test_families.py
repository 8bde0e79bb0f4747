"""One contract, every family that transformers can run here."""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from masking import masked
from safetensors.torch import load_file
from torch import Tensor

import statetrim as st
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
