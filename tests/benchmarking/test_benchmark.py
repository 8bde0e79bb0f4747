"""Timings: what is measured and how models are compared."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers.tiny import Load
from statetrim.benchmarking import benchmark as benchmarking
from statetrim.benchmarking.benchmark import DECODE_CYCLE, median_and_quartiles, time_in_turns
from statetrim.portable.kernels import DeferredState

CPU = torch.device("cpu")


def test_sizes_are_counted_on_the_real_cache_and_ratios_pair_the_rounds(
    pair: Any, tmp_path: Path
) -> None:
    before, after = pair("qwen3_5_text")
    seen: list[int] = []
    timings = st.benchmark(
        [after], baseline=before, batches=[1, 3], lengths=[20], rounds=2,
        out=tmp_path / "timings.json", progress=lambda progress: seen.append(progress.done),
    )  # fmt: skip
    assert seen == [0, 1, 2]
    assert timings.models == ["qwen3_5_text", "cut"]
    for name, opened in zip(timings.models, (before, after), strict=True):
        geometry = opened.geometry
        kv_cache = opened.family.kv_cache_size(opened.config, geometry)
        assert kv_cache is not None
        assert timings.first(name, "state bytes").value == 4 * geometry.state_numel
        assert timings.first(name, "convolution bytes").value == 4 * geometry.conv_numel
        key_values = 4 * 20 * kv_cache.layers * kv_cache.numel
        assert timings.first(name, "key-value bytes").value == key_values
    for metric in ("prefill", "decode", "mixer prefill", "mixer decode"):
        for batch in (1, 3):
            first = timings.first("qwen3_5_text", metric, batch, 20)
            second = timings.first("cut", metric, batch, 20)
            assert first.value > 0 and first.unit == "tokens/s" and first.ratio is None
            assert second.ratio and second.ratio_spread and second.spread
            assert second.spread[0] <= second.value <= second.spread[1]
    work = [timings.first(name, "mixer prefill work").value for name in timings.models]
    assert 0 < work[1] < work[0]
    assert st.Timings.load(tmp_path / "timings.json") == timings


@pytest.mark.parametrize("model_type", ["mamba2", "falcon_h1", "delta_net", "olmo_hybrid"])
def test_every_kind_of_mixer_can_be_timed(model_type: str, checkpoint: Load) -> None:
    model = checkpoint(model_type)
    timings = st.benchmark([model], baseline=model, batches=[2], lengths=[9], rounds=1)
    assert timings.models == [model_type, f"{model_type} (2)"]
    assert timings.first(f"{model_type} (2)", "mixer decode").value > 0


def test_models_take_turns() -> None:
    assert median_and_quartiles([4.0, 2.0, 0.2]) == (2.0, (1.1, 3.0))
    order: list[str] = []
    work = {name: lambda name=name: order.append(name) or time.sleep(0.001) for name in "ab"}
    timed = time_in_turns(work, rounds=2, device=CPU, min_seconds=0.0, warm_up=0)
    assert "".join(order) == "abab" + "ba"  # one call to estimate its time, then rounds in turns
    assert [len(seconds) for seconds in timed.values()] == [2, 2]


@pytest.mark.parametrize(("min_seconds", "calls"), [(0.0, 16), (0.20, 16), (0.30, 32)])
def test_a_round_decodes_tokens_for_whole_writes_of_the_state(
    min_seconds: float, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round is a multiple of DECODE_CYCLE tokens; otherwise rounds would differ by a write."""
    assert DeferredState(torch.zeros(1, 1, 2, 2)).pending_keys.shape[1] == DECODE_CYCLE
    repeats_seen: list[int] = []
    seconds_per_call = lambda work, repeats, device: repeats_seen.append(repeats) or 0.01  # noqa: E731
    monkeypatch.setattr(benchmarking, "_seconds_per_call", seconds_per_call)
    options: Any = {"rounds": 2, "device": CPU, "warm_up": 0, "cycle": DECODE_CYCLE}
    time_in_turns({"a": lambda: None}, min_seconds=min_seconds, **options)
    assert repeats_seen == [1, calls, calls]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"batches": [0]}, "batch"), ({"lengths": [2**30]}, "length"), ({"rounds": 0}, "rounds")],
)
def test_settings_out_of_bounds_are_refused(
    change: dict[str, Any], sentence: str, pair: Any
) -> None:
    model, small = pair("qwen3_5_text")
    with pytest.raises(st.StatetrimError, match=sentence):
        st.benchmark([small], baseline=model, **change)


def test_sizes_are_shown_in_their_own_unit() -> None:
    records = [
        st.Timing("a", "state bytes", 1, 64, 2**20, "bytes/sequence"),
        st.Timing("b", "state bytes", 1, 64, 2**19, "bytes/sequence"),
        st.Timing("a", "peak memory", 1, 64, 3 * 2**20, "bytes"),
    ]
    size, peak = st.Timings(["a", "b"], records).table().rows
    assert size == ("state, per sequence", "1", "64", "1.0 MiB", "512.0 KiB (0.50x)")
    assert peak[0] == "peak memory" and peak[3] == "3.0 MiB"
