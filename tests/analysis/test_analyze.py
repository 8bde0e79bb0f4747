"""The analysis against states computed token by token in float64, for every runnable family."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.forker import Forker
from helpers.masking import recorded_calls
from helpers.recurrences import naive_kernel
from helpers.untrusted import edit_json, put
from statetrim.artifacts.analysis import BINS, Analysis
from statetrim.families import families
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.kernel_hooks import KernelCall, hook_kernels
from statetrim.runtime.loading import load_live
from statetrim.runtime.states import walk_states

KDA = families()["kda"]
PORTABLE = ("delta_net", "gated_deltanet", "kda")
GATED = ("qwen3_next", "olmo_hybrid")
MAMBA = ("mamba2", "nemotron_h", "zamba2")
RUNNABLE = (*PORTABLE, *GATED, *MAMBA)
SLOW = ("olmo_hybrid", "nemotron_h")  # have the recurrences of the others
EACH_RECURRENCE = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in RUNNABLE
]
LINEAR_LAYERS = {  # of the hybrids; the others are softmax attention or feed-forward
    **dict.fromkeys(GATED, (0, 2)),
    "nemotron_h": (0, 3),
    "zamba2": (0, 1, 2, 3),  # the second and fourth have softmax attention too
}
LENGTH, BURN_IN, EVERY = 280, 128, 16  # more than one block, and a last chunk that is not full
SETTINGS: dict[str, Any] = {
    "tokens": 2 * LENGTH, "length": LENGTH, "batch_size": 2, "burn_in": BURN_IN, "every": EVERY,
}  # fmt: skip


@pytest.mark.parametrize("model_type", EACH_RECURRENCE)
@torch.no_grad()
def test_states_and_spectra_equal_the_step_by_step_oracle(
    model_type: str, checkpoint: Any, text: Path
) -> None:
    model = st.open(checkpoint(model_type))
    analysis = st.analyze(model, text, **SETTINGS)
    geometry = model.geometry
    assert tuple(analysis.layers) == LINEAR_LAYERS.get(model_type, (0, 1)), "only linear layers"
    positions = [*range(EVERY, LENGTH, EVERY), LENGTH]
    assert analysis.positions.tolist() == positions

    live, hooked = load_live(model), list[KernelCall]()
    code = sys.modules[type(next(iter(live.mixers.values()))).__module__]
    with torch.inference_mode(), recorded_calls(code) as calls, hook_kernels(live, hooked.append):
        ids = Corpus(text, model).read(tokens=2 * LENGTH, length=LENGTH).ids.long()
        live.module(input_ids=ids, use_cache=False)
    assert len(calls) == len(hooked) == len(geometry.layers)
    if model_type in PORTABLE:
        assert hooked[0].arguments["initial_state"] is None, "defaults are reported too"

    used = []
    for (_, arguments), call in zip(calls, hooked, strict=True):
        layer = analysis.layers[call.layer]
        queries, keys, _, states = naive_kernel(arguments)
        size = states.abs().amax((1, 3, 4))  # of each head in each sequence
        for every in (64, 1):
            actual = torch.cat([b.states for b in walk_states(call, model.family, every)], 1)
            truth = states[:, [end - 1 for end in (*range(every, LENGTH, every), LENGTH)]]
            assert actual.shape == truth.shape
            assert ((actual - truth).abs().amax((1, 3, 4)) < 1e-10 * size).all()
        sampled = states[:, [p - 1 for p in positions]].permute(2, 0, 1, 3, 4).numpy()
        singular = np.linalg.svd(sampled, compute_uv=False)  # [heads, sequences, positions, rank]
        ranks = (singular**2).sum(-1) / singular[..., 0] ** 2
        np.testing.assert_allclose(layer.effective_rank, ranks.mean(1), rtol=1e-9)
        used.append(ranks.mean(1) / min(states.shape[-2:]))
        late = singular[:, :, [p > BURN_IN for p in positions]]
        for head, pooled in enumerate(late.reshape(len(late), -1, late.shape[-1])):
            np.testing.assert_allclose(
                layer.spectrum[head], pooled.mean(0), rtol=0, atol=1e-10 * pooled.max()
            )
            edges = np.linspace(-8, 4, BINS + 1)
            counts = np.histogram(np.log10(pooled).clip(-7.999, 3.999), edges)[0]
            # rounding may move a value over a bin's edge
            assert np.abs(layer.histogram[head].numpy().cumsum() - counts.cumsum()).max() <= 1
        for actual, rows in ((layer.key_condition, keys), (layer.query_condition, queries)):
            of_key_heads = rows[:, :, :: rows.shape[2] // geometry.num_k_heads]
            truth = [np.linalg.cond(x.flatten(0, 1).numpy()) for x in of_key_heads.unbind(2)]
            np.testing.assert_allclose(actual, truth, rtol=1e-6)
    utilization, late_positions = np.stack(used), [p > BURN_IN for p in positions]
    for actual, truth in (
        (analysis.utilization, utilization),
        (analysis.mean_utilization, utilization[..., late_positions].mean(-1)),
        (analysis.utilization_by_position, utilization.mean((0, 1))),
    ):
        np.testing.assert_allclose(actual, truth, rtol=1e-9)


@pytest.mark.parametrize("bounded", [False, True])
def test_gates_that_a_kernel_computes_itself_are_understood(bounded: bool) -> None:
    """fla's GPU kernels take raw gates; the states must equal those from computed gates."""
    torch.manual_seed(0)
    raw, key, value = torch.randn(2, 40, 4, 6), torch.randn(2, 40, 2, 6), torch.randn(2, 40, 4, 8)
    raw_beta, a_log, bias = torch.randn(2, 40, 4), torch.randn(4), torch.randn(24)
    shifted, rate = raw.double() + bias.view(4, 6), a_log.double().exp().view(4, 1)
    g = -4 * torch.sigmoid(rate * shifted) if bounded else -rate * torch.log1p(shifted.exp())
    common = {"v": value, "use_qk_l2norm_in_kernel": True}
    finished = common | {"g": g, "beta": 2 * raw_beta.double().sigmoid()}
    unfinished = common | {
        "g": raw, "beta": raw_beta, "A_log": a_log, "dt_bias": bias,
        "lower_bound": -4.0 if bounded else None, "use_gate_in_kernel": True,
        "use_beta_sigmoid_in_kernel": True, "allow_neg_eigval": True,
    }  # fmt: skip
    a, b = (
        next(walk_states(KernelCall(0, key, key, value, "chunk_kda", arguments), KDA, 8)).states
        for arguments in (finished, unfinished)
    )
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_recurrence_that_is_not_known_is_refused() -> None:
    x = torch.randn(1, 8, 2, 4)
    for family, kernel, arguments, message in (
        (families()["comba"], "chunk_comba", {}, "does not know the recurrence of 'chunk_comba'"),
        (KDA, "chunk_kda", {"initial_state": x}, "without a cache"),
        (KDA, "chunk_kda", {"cu_seqlens": x}, "packed"),
    ):
        with pytest.raises(st.StatetrimError, match=message):
            next(walk_states(KernelCall(0, x, x, x, kernel, arguments), family, 8))


@pytest.mark.parametrize("model_type", RUNNABLE)
def test_filters_are_the_live_models_own(model_type: str, checkpoint: Any) -> None:
    model = st.open(checkpoint(model_type))
    g, live = model.geometry, load_live(model)
    for layer, mixer in live.mixers.items():
        filters = model.filters(layer)
        assert filters is not None
        width = g.num_k_heads * g.head_k_dim
        if hasattr(mixer, "k_conv1d"):
            query, key = mixer.q_conv1d.weight, mixer.k_conv1d.weight
        elif model_type in MAMBA:  # [ x | B | C ]
            _, key, query = mixer.conv1d.weight.split([g.num_v_heads * g.head_v_dim, width, width])
        else:  # [ q | k | v ]
            query, key, _ = mixer.conv1d.weight.split([width, width, g.num_v_heads * g.head_v_dim])
        for actual, expected in zip(filters, (query, key), strict=True):
            assert torch.equal(actual.flatten(0, 2), expected.squeeze(1).double())


PEAK = """
import sys, torch, statetrim.portable.kernels
from statetrim import Geometry
from statetrim.analysis.analyze import _Tally
from statetrim.families import families
from statetrim.runtime.kernel_hooks import KernelCall
from statetrim.runtime.states import StateStorage
time = int(sys.argv[1])
q, k, v = (torch.randn(1, time, 8, 64) for _ in range(3))
inputs = {"v": v, "g": -torch.rand(1, time, 8), "beta": torch.rand(1, time, 8),
         "use_qk_l2norm_in_kernel": True}
family, geometry = families()["gated_deltanet"], Geometry((0,), 8, 8, 64, 64)
call = KernelCall(0, q, k, v, "chunk_gated_delta_rule", inputs)
_Tally(geometry, family, time, 64, 128, StateStorage()).add(call)
"""


def test_memory_is_flat_in_sequence_length(forker: Forker, tmp_path: Path) -> None:
    """Keeping the chunk-end states of 8,192 tokens would take 32 MiB, float64 keys as much."""
    (tmp_path / "peak.py").write_text(PEAK)
    runs = [forker.run([str(tmp_path / "peak.py"), time], script=True) for time in ("1024", "8192")]
    assert [run["code"] for run in runs] == [0, 0], runs[0]["err"]
    arguments = (8192 - 1024) * 8 * (3 * 64 + 2) * 4  # of the call
    assert runs[1]["peak"] - runs[0]["peak"] < arguments + 16 * 2**20


@pytest.fixture(scope="module")
def pair(pair: Any, text: Path) -> Analysis:
    """The analysis of a cut to half the key channels, with the original as baseline."""
    model, small = pair("gated_deltanet")
    return st.analyze(small, text, **SETTINGS, baseline=model)


def same(first: Analysis, second: Analysis) -> None:
    for name in ("geometry", "burn_in", "lineage"):
        assert getattr(first, name) == getattr(second, name)
    assert torch.equal(first.positions, second.positions)
    assert first.layers.keys() == second.layers.keys()
    for number, layer in first.layers.items():
        for name, value in vars(layer).items():
            other = getattr(second.layers[number], name)
            torch.testing.assert_close(value, other, rtol=0, atol=0, equal_nan=True)


def test_what_is_saved_is_what_is_loaded(pair: Analysis, tmp_path: Path) -> None:
    pair.save(tmp_path / "analysis.json")
    assert {path.name for path in tmp_path.iterdir()} == {"analysis.json", "analysis.safetensors"}
    again = Analysis.load(tmp_path / "analysis.json")
    assert pair.baseline is not None and again.baseline is not None
    same(pair, again)
    same(pair.baseline, again.baseline)
    assert (again.max_rank, again.baseline.max_rank) == (6, 12)
    assert again.lineage["data"]["digest"] == again.baseline.lineage["data"]["digest"]
    assert again.lineage["source"] != again.baseline.lineage["source"]


def test_the_baseline_is_the_model_analysed_alone(
    pair: Analysis, checkpoint: Any, text: Path
) -> None:
    alone = st.analyze(st.open(checkpoint("gated_deltanet")), text, **SETTINGS)
    assert pair.baseline is not None
    same(alone, pair.baseline)


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        *load_cases("analysis"),
        (["model", "geometry", "layers"], list(range(10**5)), "not valid: model.geometry: layers"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(
    keys: list[str], value: Any, message: str, pair: Analysis, tmp_path: Path
) -> None:
    path = tmp_path / "analysis.json"
    pair.save(path)
    edit_json(path, lambda content: put(content, keys, value))
    with pytest.raises(st.StatetrimError, match=message):
        Analysis.load(path)


def test_broken_arrays_are_refused(pair: Analysis, tmp_path: Path) -> None:
    path, arrays_file = tmp_path / "analysis.json", tmp_path / "analysis.safetensors"
    pair.save(path)
    intact = arrays_file.read_bytes()
    for content in (intact[:-1], b"", b"\xff" * 64, intact[:8] + b"{" * 100):
        arrays_file.write_bytes(content)
        with pytest.raises(st.StatetrimError, match="not the file that was written"):
            Analysis.load(path)
        tiny.edit_json(path, arrays_sha256=hashlib.sha256(content).hexdigest())
        with pytest.raises(st.StatetrimError, match="cannot be read as arrays"):
            Analysis.load(path)
        pair.save(path)
    arrays_file.unlink()
    with pytest.raises(st.StatetrimError, match="cannot be read"):
        Analysis.load(path)


def test_what_cannot_be_analysed_is_said_in_a_sentence(checkpoint: Any, text: Path) -> None:
    model = st.open(checkpoint("gated_deltanet"))
    for changes, message in (
        ({"burn_in": LENGTH}, "leave nothing"),
        ({"every": 3}, "power of two.*not 3"),
        ({"every": "word"}, "every must be a whole number, not 'word'"),
        ({"every": 128}, "at most 64, not 128"),
        ({"baseline": st.open(checkpoint("delta_net"))}, "other layers or heads|nothing would"),
    ):
        with pytest.raises(st.StatetrimError, match=message):
            st.analyze(model, text, **{**SETTINGS, **changes})


def test_stored_states_are_analysed_and_said(checkpoint: Any, text: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    plain, same, rounded = (
        st.analyze(model, text, **SETTINGS, **more)
        for more in ({}, {"state_dtype": "float32"}, {"state_dtype": "int8"})
    )
    for layer in plain.layers:
        ranks = [analysis.layers[layer].effective_rank for analysis in (plain, same, rounded)]
        assert torch.equal(ranks[0], ranks[1]) and not torch.equal(ranks[0], ranks[2])
    assert rounded.lineage["state_dtype"] == "int8" and "state_dtype" not in same.lineage
