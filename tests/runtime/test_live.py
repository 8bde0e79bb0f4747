"""A loaded model with its checkpoint, and hooks on its mixers."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import statetrim as st
from helpers import tiny
from statetrim.runtime.live import MixerCall, hook_mixers
from statetrim.runtime.loading import load_live
from statetrim.runtime.placement import Placement

Load = Callable[[str], Path]


def test_it_knows_its_checkpoint_runtime_and_device(checkpoint: Load) -> None:
    model = st.open(checkpoint("delta_net"))
    live = load_live(model, Placement(device="cpu:0"))
    assert live.checkpoint is model and live.runtime.name in ("portable", "fla")
    assert live.device == torch.device("cpu"), "moving a Parameter to cpu:0 returns a plain Tensor"
    assert all(isinstance(p, nn.Parameter) for p in live.module.parameters())
    assert not [name for name in vars(live.module) if name.startswith("statetrim")]
    assert len(live.decoder_layers) == model.config["num_hidden_layers"]
    assert live.vocab_size == tiny.VOCABULARY
    assert torch.equal(live.random_ids(2, 9), live.random_ids(2, 9))


@pytest.mark.filterwarnings("ignore")  # of transformers, about its slow paths
@tiny.every_type(*tiny.ONE_OF_EACH_MIXER, "minicpmv4_6", "nemotron_h_omni")
@torch.no_grad()
def test_a_step_is_the_stock_models_with_its_cache(model_type: str, checkpoint: Load) -> None:
    live, other = (load_live(checkpoint(model_type)) for _ in range(2))
    parameters = inspect.signature(other.module.forward).parameters
    name = "cache_params" if "cache_params" in parameters else "past_key_values"
    ids = live.random_ids(2, 12)
    cache = stock = None
    for tokens in (ids[:, :9], ids[:, 9:10], ids[:, 10:11]):
        logits, cache = live.forward_with_cache(tokens, cache)
        outputs = other.module(input_ids=tokens, use_cache=True, **{name: stock} if stock else {})
        stock = outputs[name]
        torch.testing.assert_close(logits, outputs.logits[:, -1:], rtol=0, atol=1e-5)
    without_cache, _ = live.forward_with_cache(ids[:, 10:11])
    assert (without_cache - logits).abs().max() > 1e-2, "the cache must matter"


@torch.no_grad()
def test_a_mixers_call_can_be_repeated(checkpoint: Load) -> None:
    live, calls = load_live(checkpoint("qwen3_next")), list[MixerCall]()
    seen: list[Any] = []
    last = live.checkpoint.geometry.layers[-1]
    live.mixers[last].register_forward_hook(lambda module, args, output: seen.append(output))
    with hook_mixers(live.mixers, calls.append):
        live.hidden_states(live.random_ids(1, 20))
    assert [call.layer for call in calls] == list(live.checkpoint.geometry.layers)
    assert torch.equal(calls[-1].output, seen[0])
    assert torch.equal(calls[-1].repeat(live.mixers[last]), seen[0])
    assert not torch.equal(calls[0].repeat(live.mixers[last]), seen[0])
    live.hidden_states(live.random_ids(1, 20))
    assert len(calls) == len(live.mixers), "hooks are gone"


def test_a_forward_pass_that_fails_is_named_even_without_a_message(
    checkpoint: Load, monkeypatch: pytest.MonkeyPatch
) -> None:

    def fails(*_: Any, **__: Any) -> None:
        raise NotImplementedError

    live = load_live(checkpoint("delta_net"))
    monkeypatch.setattr(live.module, "forward", fails)
    with pytest.raises(st.StatetrimError, match="does not run: NotImplementedError; its config"):
        live.logits(live.random_ids(1, 4))
