"""States stored in few bits, compared with a float64 reference that rounds after each piece."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers.recurrences import naive_kernel
from helpers.tiny import Load
from statetrim.maths.quantization import FORMATS, fake_quantize
from statetrim.runtime.kernel_hooks import KernelCall, hook_kernels
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.runtime.states import StateStorage, stored_states
from statetrim.runtime.states import walk_states as analysed

FAMILIES = ("qwen3_5_text", "delta_net", "kda", "mamba2")
DTYPES = tuple(FORMATS)[1:]
TIME, PIECE = 41, 16
PIECES = [
    (model_type, dtype, (1, PIECE)[(row + column) % 2])
    for row, model_type in enumerate(FAMILIES)
    for column, dtype in enumerate(DTYPES)
]
"""Every dtype of every family, rounded after each token or each piece in turn."""


def reference_rounding(x: Tensor, dtype: str) -> Tensor:
    """x [..., keys, values] float64, rounded to `dtype` with a scale per value channel."""
    if dtype in ("bfloat16", "float16"):
        return x.to(getattr(torch, dtype)).double()
    scale = x.abs().amax(-2, keepdim=True) / {"int8": 127.0, "float8_e4m3fn": 448.0}[dtype]
    scale[scale == 0] = 1.0
    codes = (x / scale).round() if dtype == "int8" else (x / scale).to(torch.float8_e4m3fn).double()
    return codes * scale


def reference_walk(call: KernelCall, dtype: str, piece: int) -> tuple[np.ndarray, np.ndarray]:
    """Output of the kernel call, recomputed, and the state after every token, rounded if due."""

    def rounded(state: Tensor, t: int) -> Tensor:
        due = (t + 1) % piece == 0
        return reference_rounding(state, dtype) if due else state

    _, _, output, states = naive_kernel(call.arguments, rounded)
    return output.numpy(), states.numpy()


def slowly_forgetting(path: Path) -> LiveModel:
    """A model with slow decay, so that rounded states affect later outputs."""
    live = load_live(path)
    for mixer in live.mixers.values():
        if hasattr(mixer, "dt_bias"):
            mixer.dt_bias.data.fill_(-5.0)
    return live


def record_calls(live: LiveModel, ids: Tensor, storage: StateStorage) -> list[KernelCall]:
    recorded: list[KernelCall] = []
    with torch.inference_mode(), stored_states(live, storage), hook_kernels(live, recorded.append):
        live.logits(ids)
    return recorded


@pytest.mark.parametrize(("model_type", "dtype", "piece"), PIECES)
def test_rounding_equals_a_walk_by_hand(
    model_type: str, dtype: str, piece: int, checkpoint: Load
) -> None:
    """A float32 sum may be rounded to the neighbour of the float64 one, and then differs by a step
    of the dtype. Such values are few; all others agree as without rounding."""
    live = slowly_forgetting(checkpoint(model_type))
    ids = live.random_ids(2, TIME)
    for call in record_calls(live, ids, StateStorage(dtype, piece)):
        expected, _ = reference_walk(call, dtype, piece)
        plain, _ = reference_walk(call, dtype, 10**6)
        error = np.abs(call.output.double().numpy() - expected)
        effect = np.abs(plain - expected)
        assert effect.max() > 2e-5 * np.abs(expected).max()  # rounding shows
        assert error[:, :piece].max() < 1e-5 * np.abs(expected).max()
        assert np.median(error) < 1e-4 * np.abs(expected).max()
        assert error.mean() < 0.05 * effect.mean()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_analysis_looks_at_stored_states(model_type: str, dtype: str, checkpoint: Load) -> None:
    live = slowly_forgetting(checkpoint(model_type))
    time, every = 3 * PIECE, PIECE // 2
    for call in record_calls(live, live.random_ids(2, time), StateStorage(dtype, PIECE)):
        blocks = analysed(call, live.checkpoint.family, every, dtype, PIECE)
        states = torch.cat([block.states for block in blocks], 1).numpy()
        expected = reference_walk(call, dtype, PIECE)[1][:, every - 1 :: every]
        plain = reference_walk(call, dtype, 10**6)[1][:, every - 1 :: every]
        off = np.abs(states - expected) > 1e-6 * np.abs(expected).max()
        assert off.mean() < 1e-3, "only where a sum falls on a border"
        assert np.abs(plain - expected)[:, 1::2].max() > 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_decoded_tokens_are_rounded_as_a_prompt_in_pieces_of_one(
    model_type: str, checkpoint: Load
) -> None:
    live = slowly_forgetting(checkpoint(model_type))
    ids = live.random_ids(2, 24)
    with torch.inference_mode():
        with stored_states(live, StateStorage("bfloat16", 1)):
            prompt_logits = live.logits(ids)
        plain = live.logits(ids)
        decoded_logits, cache = [], None
        with stored_states(
            live, StateStorage("bfloat16", 8)
        ):  # 8 tokens in one piece, then one each
            for token in ids.split(1, dim=1):
                logits, cache = live.forward_with_cache(token, cache)
                decoded_logits.append(logits[:, -1])
    decoded = torch.stack(decoded_logits, dim=1)
    assert (decoded - prompt_logits).abs().mean() < 0.1 * (plain - prompt_logits).abs().mean()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_float32_changes_nothing(model_type: str, checkpoint: Load) -> None:
    live = slowly_forgetting(checkpoint(model_type))
    ids = live.random_ids(2, 24)
    with torch.inference_mode():
        before = live.logits(ids)
        with stored_states(live, StateStorage("float32", 1)):
            assert torch.equal(live.logits(ids), before)
        with stored_states(live, StateStorage("bfloat16", 8)):
            assert not torch.equal(live.logits(ids), before)
        assert torch.equal(live.logits(ids), before)  # nothing is left behind


@pytest.mark.parametrize("dtype", DTYPES)
def test_stochastic_rounding_keeps_the_mean_and_takes_neighbours(dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 6, 5, generator=generator) * torch.logspace(-3, 3, 5)
    drawn = fake_quantize(x.expand(20000, 6, 5), dtype, -2, generator)
    nearest = fake_quantize(x, dtype, -2)
    allowed = [set(drawn[:, i, j].tolist()) for i in range(6) for j in range(5)]
    assert max(map(len, allowed)) == 2 and any(len(candidate) == 2 for candidate in allowed)
    assert (drawn.double().mean(0) - x).abs().max() < 0.02 * (drawn.amax(0) - drawn.amin(0)).max()
    # what is stored stays as it is when it is stored again
    assert torch.allclose(fake_quantize(nearest, dtype, -2), nearest, rtol=1e-6)
    for value, both in zip(nearest.flatten().tolist(), allowed, strict=True):
        assert any(abs(value - candidate) <= 1e-6 * abs(value) for candidate in both)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_the_largest_draw_keeps_the_sign_of_a_rows_largest(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """127 + (1 - 2**-24) is 128 in float32, which int8 would store as -128."""
    largest = torch.full((2, 3), 1 - 2.0**-24)
    monkeypatch.setattr(torch, "rand", lambda *args, **kwargs: largest)
    x = torch.tensor([[1.0, 0.5, -1.0], [2.0, -2.0, 0.0]])
    rounded = fake_quantize(x, dtype, -1, torch.Generator())
    assert torch.equal(rounded.sign(), x.sign())
    assert torch.equal(rounded.abs().amax(-1), x.abs().amax(-1))


def test_a_wrong_dtype_or_piece_is_told() -> None:
    with pytest.raises(st.StatetrimError, match="cannot be stored in 'int4'; choose float32, bfl"):
        StateStorage("int4")
    with pytest.raises(st.StatetrimError, match="pieces of 0 tokens"):
        StateStorage("int8", 0)
