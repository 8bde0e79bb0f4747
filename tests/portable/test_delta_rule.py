"""Chunked, decoding and stepwise recurrences agree with each other and fla's naive operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from helpers import tiny
from helpers.fla_worker import run
from helpers.forker import Forker
from helpers.recurrences import step_by_step
from statetrim.portable import kernels as rules
from statetrim.portable.kernels import DeferredState

KINDS = ("delta_rule", "gated_delta_rule", "kda")
DECAYS = ("near one", "moderate", "near zero", "mixed", "overwhelming")
CASES = [("delta_rule", "none"), *((kind, x) for kind in KINDS[1:] for x in DECAYS)]
EXACT = 1e-9


def arguments(
    kind: str,
    time: int,
    decay: str = "moderate",
    batch: int = 2,
    key_heads: int = 2,
    group: int = 2,
    head_k_dim: int = 8,
    head_v_dim: int = 5,
    state: bool = True,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Random inputs by argument name; q and k of unit length, beta up to 2."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    heads = key_heads * group
    inputs = {
        "q": rules.l2_normalized(normal(batch, time, key_heads, head_k_dim)),
        "k": rules.l2_normalized(normal(batch, time, key_heads, head_k_dim)),
        "v": normal(batch, time, heads, head_v_dim),
    }
    if kind in ("gated_delta_rule", "kda"):
        shape = (batch, time, heads) + ((head_k_dim,) if kind == "kda" else ())
        strength = {"near one": 1e-5, "moderate": 1.0, "near zero": 60.0, "overwhelming": 1e5}
        inputs["g"] = -uniform(*shape) * strength.get(decay, 1.0)
        if decay == "mixed":
            inputs["g"] *= torch.where(uniform(*shape) < 0.3, 200.0, 1e-4)
    inputs["beta"] = 2 * uniform(batch, time, heads)
    if state:
        inputs["initial_state"] = normal(batch, heads, head_k_dim, head_v_dim)
    return {name: x.to(dtype) for name, x in inputs.items()}


def run_stepwise(kind: str, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    output, states = step_by_step(**inputs)
    return output, states[:, -1]


def run_chunked(kind: str, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    function: Callable[..., tuple[Tensor, Tensor]] = getattr(rules, f"chunk_{kind}")
    return function(**inputs, output_final_state=True)


def with_gradients(
    run: Callable[..., tuple[Tensor, Tensor]], kind: str, inputs: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Output, final state, and the gradients of a random projection of both for every input."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    output, state = run(kind, leaves)
    generator = torch.Generator().manual_seed(7)
    loss = torch.zeros((), dtype=output.dtype)
    for x in (output, state):
        loss = loss + (x * torch.randn(x.shape, generator=generator, dtype=x.dtype)).sum()
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    named = {f"gradient of {name}": x for name, x in zip(leaves, gradients, strict=True)}
    return {"output": output.detach(), "final state": state.detach(), **named}


def assert_chunked_equals_stepped(kind: str, inputs: dict[str, Tensor]) -> None:
    actual = with_gradients(run_chunked, kind, inputs)
    expected = with_gradients(run_stepwise, kind, inputs)
    assert actual.keys() == expected.keys()
    for name in expected:
        assert actual[name].shape == expected[name].shape
        difference = (actual[name] - expected[name]).abs().max().item()
        assert difference <= EXACT, f"{name} differs by {difference:.2e}"


@pytest.mark.parametrize("kind, decay", CASES)
@pytest.mark.parametrize(("time", "state"), [(1, True), (63, False), (64, True), (65, True)])
def test_chunked_equals_stepped(kind: str, time: int, decay: str, state: bool) -> None:
    inputs = arguments(kind, time, decay, state=state)
    assert_chunked_equals_stepped(kind, inputs)


@pytest.mark.parametrize("kind, decay", [c for c in CASES if c[1] in ("none", "near one", "mixed")])
def test_chunked_equals_stepped_over_a_thousand_tokens(kind: str, decay: str) -> None:
    inputs = arguments(kind, 1000, decay, batch=1, key_heads=1, state=decay != "near one")
    assert_chunked_equals_stepped(kind, inputs)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    decay=st.sampled_from(DECAYS),
    time=st.integers(1, 140),
    shape=st.fixed_dictionaries(
        {name: st.integers(1, 3) for name in ("batch", "key_heads", "group")}
        | {name: st.integers(1, 17) for name in ("head_k_dim", "head_v_dim")}
        | {"state": st.booleans(), "seed": st.integers(0, 1000)}
    ),
)
def test_chunked_equals_stepped_for_any_shape(
    kind: str, decay: str, time: int, shape: dict[str, Any]
) -> None:
    assert_chunked_equals_stepped(kind, arguments(kind, time, decay, **shape))


@pytest.mark.parametrize("erase", [True, False], ids=["delta rule", "linear attention"])
@pytest.mark.parametrize("kind", KINDS)
def test_states_at_chunk_ends_are_final_states_of_prefixes(kind: str, erase: bool) -> None:
    inputs = arguments(kind, 40)
    beta = inputs["beta"] if erase else None
    g = inputs.get("g")
    if kind == "gated_delta_rule":
        g = inputs["g"].unsqueeze(-1)
    k, v, start = inputs["k"], inputs["v"], inputs["initial_state"]
    states = rules.chunk_states(k, v, g, beta, start, chunk_size=16)
    assert states.shape == (2, 3, 4, 8, 5)
    inputs = {name: x for name, x in inputs.items() if erase or name != "beta"}
    for i, end in enumerate((16, 32, 40)):
        prefix = {name: x if name == "initial_state" else x[:, :end] for name, x in inputs.items()}
        assert (states[:, i] - run_stepwise(kind, prefix)[1]).abs().max() <= EXACT


@pytest.mark.parametrize("kind", ["gated_delta_rule", "kda"])
def test_forgetting_everything_leaves_only_the_last_write(kind: str) -> None:
    inputs = arguments(kind, 70)
    inputs["g"] = torch.full_like(inputs["g"], -torch.inf)
    results = with_gradients(run_chunked, kind, inputs)
    assert all(x.isfinite().all() for x in results.values())
    k = inputs["k"].repeat_interleave(2, 2)[:, -1]
    write = inputs["beta"][:, -1, :, None] * inputs["v"][:, -1]
    expected = k.unsqueeze(-1) * write.unsqueeze(-2)
    assert (results["final state"] - expected).abs().max() <= EXACT


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kind", ["gated_delta_rule", "kda"])
def test_float32_keeps_its_precision_under_any_decay(kind: str, decay: str) -> None:
    inputs = arguments(kind, 200, decay)
    inputs["beta"] = inputs["beta"] / 2
    inputs = {name: x.float() for name, x in inputs.items()}
    exact, exact_state = run_stepwise(kind, {name: x.double() for name, x in inputs.items()})
    output, state = run_chunked(kind, inputs)
    assert output.dtype == state.dtype == torch.float32
    assert (output - exact).abs().max() < 1e-5
    assert (state - exact_state).abs().max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_decoding_equals_stepping(kind: str) -> None:
    inputs = arguments(kind, 9, "mixed")
    expected = run_stepwise(kind, inputs)
    start_state = inputs["initial_state"].clone()
    decode = getattr(rules, f"fused_recurrent_{kind}")
    output, state = decode(**inputs, output_final_state=True)
    assert (output - expected[0]).abs().max() <= EXACT
    assert (state - expected[1]).abs().max() <= EXACT
    assert torch.equal(inputs["initial_state"], start_state)
    deferred = DeferredState(start_state)
    output, state = decode(**{**inputs, "initial_state": deferred})
    assert state is deferred
    assert (output - expected[0]).abs().max() <= EXACT
    assert (deferred.flush() - expected[1]).abs().max() <= EXACT
    assert deferred.flush().data_ptr() == start_state.data_ptr()


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    decay=st.sampled_from(DECAYS),
    capacity=st.integers(1, 5),
    reads=st.lists(st.booleans(), min_size=1, max_size=14),
)
def test_deferred_writes_change_nothing(
    kind: str, decay: str, capacity: int, reads: list[bool]
) -> None:
    """Whenever the state is read, and however many writes are pending."""
    inputs = arguments(kind, len(reads), decay)
    expected, final = run_stepwise(kind, inputs)
    state = DeferredState(inputs.pop("initial_state"), capacity)
    decode = getattr(rules, f"fused_recurrent_{kind}")
    for t, read in enumerate(reads):
        token = {name: x[:, t : t + 1] for name, x in inputs.items()}
        output, _ = decode(**token, initial_state=state)
        assert (output[:, 0] - expected[:, t]).abs().max() <= EXACT
        if read:
            state.flush()
    assert (state.flush() - final).abs().max() <= EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_normalization_inside_equals_normalization_before(kind: str) -> None:
    inputs = arguments(kind, 70)
    raw = {**inputs, "q": 3 * inputs["q"], "k": 0.2 * inputs["k"]}
    before = {**raw, "q": rules.l2_normalized(raw["q"]), "k": rules.l2_normalized(raw["k"])}
    for function in (f"chunk_{kind}", f"fused_recurrent_{kind}"):
        rule = getattr(rules, function)
        inside = rule(**raw, output_final_state=True, use_qk_l2norm_in_kernel=True)
        outside = rule(**before, output_final_state=True)
        for inside_tensor, outside_tensor in zip(inside, outside, strict=True):
            assert (inside_tensor - outside_tensor).abs().max() <= EXACT


NAIVE_CASES = [(kind, decay) for kind in KINDS for decay in ("near one", "moderate")]


def naive_inputs(kind: str, decay: str) -> dict[str, Tensor]:
    group = 2 if kind == "kda" else 1  # fla's other naive operators know no grouped values
    inputs = arguments(kind, 128, decay, group=group, dtype=torch.float32)
    return {**inputs, "beta": inputs["beta"] / 2}


@pytest.fixture(scope="module")
def naive_outputs(tmp_path_factory: pytest.TempPathFactory, fla_forker: Forker) -> Path:
    folder = tmp_path_factory.mktemp("naive")
    for kind, decay in NAIVE_CASES:
        save_file(naive_inputs(kind, decay), folder / f"{kind}.{decay}.inputs.safetensors")
    run(fla_forker, "operators", folder)
    return folder


@pytest.mark.skipif(not tiny.FLA_INSTALLED, reason="fla needs triton to be imported")
@pytest.mark.parametrize("kind, decay", NAIVE_CASES)
def test_fla_naive_operators_agree(kind: str, decay: str, naive_outputs: Path) -> None:
    fla_outputs = load_file(naive_outputs / f"{kind}.{decay}.outputs.safetensors")
    output, state = run_chunked(kind, naive_inputs(kind, decay))
    assert (output - fla_outputs["recurrent_output"]).abs().max() < 1e-5
    assert (state - fla_outputs["recurrent_state"]).abs().max() < 1e-5
    if kind != "delta_rule":
        assert (output - fla_outputs["chunk_output"]).abs().max() < 1e-5
        assert (state - fla_outputs["chunk_state"]).abs().max() < 1e-5
