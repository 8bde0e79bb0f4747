"""A loaded model with its checkpoint; hooks on its mixers, and on kernels of other signatures."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import statetrim as st
from helpers import raw, tiny
from helpers.tiny import Load
from statetrim.calibration.sums import Sums
from statetrim.cut.shape import Kept
from statetrim.errors import StatetrimError
from statetrim.runtime.kernel_hooks import KernelCall, _Recorder, hook_kernels
from statetrim.runtime.live import LiveModel, MixerCall, hook_mixers
from statetrim.runtime.loading import load_live
from statetrim.runtime.placement import Placement
from statetrim.statistics import STATISTICS
from statetrim.surgery.check import compare_cut

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, about its slow paths


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


class KernelModule(nn.Module):
    """A module as the `kernels` package makes it from a function: `forward` has its signature."""

    def __init__(self, function: Callable[..., Any], has_signature: bool) -> None:
        super().__init__()
        self.function = function
        if has_signature:
            forward = lambda *args, **kwargs: function(*args, **kwargs)  # noqa: E731
            forward.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
            self.forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def modeling_module(live: LiveModel) -> Any:
    return sys.modules[type(next(iter(live.mixers.values()))).__module__]


def calls_of(live: LiveModel, **options: Any) -> list[KernelCall]:
    calls: list[KernelCall] = []
    with torch.no_grad(), hook_kernels(live, calls.append, **options):
        live.hidden_states(live.random_ids(1, 20))
    return calls


@pytest.mark.parametrize("has_signature", [True, False], ids=["with a signature", "opaque"])
@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2"])
def test_a_kernel_that_is_a_module_is_bound_by_name(
    model_type: str, has_signature: bool, checkpoint: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = load_live(checkpoint(model_type))
    expected = calls_of(live)
    modeling = modeling_module(live)
    for name in live.checkpoint.family.kernels:
        monkeypatch.setattr(modeling, name, KernelModule(getattr(modeling, name), has_signature))
    calls = calls_of(live)
    assert [call.layer for call in calls] == [call.layer for call in expected]
    for actual, reference in zip(calls, expected, strict=True):
        assert torch.equal(actual.query, reference.query) and torch.equal(actual.key, reference.key)
        assert torch.equal(actual.output, reference.output)
        if has_signature:
            assert set(actual.arguments) == set(reference.arguments)


def reordered(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` behind transformers' wrapper, with its optional arguments in another order."""
    parameters = list(inspect.signature(kernel).parameters.values())
    required = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    optional = [p.name for p in parameters if p.default is not p.empty]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        positional = dict(zip([p.name for p in required] + optional[::-1], args, strict=False))
        duplicates = set(positional) & set(kwargs)
        if duplicates:
            raise TypeError(f"got multiple values for argument {min(duplicates)!r}")
        return kernel(**positional, **kwargs)

    wrapped.__signature__ = inspect.signature(kernel)  # type: ignore[attr-defined]
    return wrapped


@pytest.mark.parametrize("model_type", ("mamba2", "nemotron_h"))
def test_check_hands_keywords_on_as_keywords(
    model_type: str, checkpoint: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """mamba_ssm has z before dt_bias, transformers' own function after it."""
    model = st.open(checkpoint(model_type))
    plan = st.select(model, "l1", "7x100%")
    small = st.prune(model, plan, tmp_path / "small")
    modeling = modeling_module(load_live(model))
    scan = modeling.mamba2_chunk_scan
    monkeypatch.setattr(modeling, "mamba2_chunk_scan", reordered(scan))
    assert compare_cut(model, plan, small).sliced_against_masked < 1e-5


def test_a_kernel_that_is_never_called_need_not_tell_its_arguments(
    checkpoint: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = load_live(checkpoint("qwen3_next"))
    expected = [call.layer for call in calls_of(live)]
    never_called = "torch_recurrent_gated_delta_rule"
    monkeypatch.setattr(modeling_module(live), never_called, lambda **kwargs: None)
    assert [call.layer for call in calls_of(live)] == expected


def test_a_kernel_without_query_and_key_is_named(
    checkpoint: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = load_live(checkpoint("qwen3_next"))
    monkeypatch.setattr(type(live.checkpoint.family), "query_and_key", (("reader", "writer"),))
    with pytest.raises(StatetrimError, match="torch_chunk_gated_delta_rule is given query, key"):
        calls_of(live)


def hooked_kernel(
    model: st.Checkpoint, calls: list[KernelCall], kept: dict[int, Kept]
) -> Callable[..., Any]:
    """A kernel that returns the argument `v`, within the hooks of a model that only a GPU runs."""
    recorder = _Recorder(model, kept, calls.append)
    recorder.layer = 0
    received: dict[str, Any] = {}

    def kernel(**arguments: Any) -> torch.Tensor:
        received.update(arguments)
        values: torch.Tensor = arguments["v"]
        return values

    hooked = recorder.wrap(model.family.kernels[0], kernel, inspect.signature(kernel))
    return lambda **arguments: (hooked(**arguments), received)[1]


def test_all_query_heads_of_a_key_head_are_summed(tmp_path: Path) -> None:
    """GLA's four query heads read two key heads."""
    model = st.open(raw.build(tmp_path / "gla", "gla"))
    width = model.geometry.head_k_dim
    query, key = torch.randn(3, 5, 4, width), torch.randn(3, 5, 2, width)
    calls: list[KernelCall] = []
    repeated = key.repeat_interleave(2, dim=2)
    hooked_kernel(model, calls, {})(q=query, k=repeated, v=torch.randn(3, 5, 4, 8))
    sums = Sums(model, [STATISTICS["query_gram"], STATISTICS["key_gram"]])
    sums.on_call(calls[0])
    query_gram, key_gram = sums.cpu_tensors()[1], sums.cpu_tensors()[0]
    exact = query.double().reshape(3, 5, 2, 2, width)
    assert torch.allclose(query_gram, torch.einsum("bthgc,bthgd->hcd", exact, exact))
    assert torch.allclose(key_gram, torch.einsum("bthc,bthd->hcd", key.double(), key.double()))
    assert sums.layer_statistics[0]["query_gram"] is query_gram, "no copy of what is on the CPU"


def test_every_argument_with_key_channels_is_masked(tmp_path: Path) -> None:
    """Comba's kernel takes the key twice, as `k` and, decayed, as `p`."""
    model = st.open(raw.build(tmp_path / "comba", "comba"))
    kept = torch.tensor([[0, 3], [1, 2]])
    ones = torch.ones(1, 4, 2, model.geometry.head_k_dim)
    received = hooked_kernel(model, [], {0: {"key": kept}})(q=ones, k=ones, p=ones, v=ones)
    for name in ("q", "k", "p"):
        assert [row.nonzero().flatten().tolist() for row in received[name][0, 0]] == kept.tolist()
