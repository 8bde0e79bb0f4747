"""The analysis against states walked token by token in float64, on every family that runs here."""

import functools
import inspect
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reference
import statetrim as st
import tiny
from statetrim.analysis_file import BINS, filter_similarity
from statetrim.data import sequences
from statetrim.linalg import rank_utilization
from statetrim.loading import load, load_tokenizer
from statetrim.states import walk
from statetrim.tap import KernelCall, mixers, tap

PORTABLE = ("delta_net", "gated_deltanet", "kda")
GATED = ("qwen3_next", "qwen3_5_text", "olmo_hybrid")
MAMBA = ("mamba2", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h", "zamba2")
RUNNABLE = (*PORTABLE, *GATED, *MAMBA)
LINEAR_LAYERS = {  # of the hybrids; the others are softmax attention or feed-forward
    **dict.fromkeys((*GATED, "bamba", "granitemoehybrid"), (0, 2)),
    "nemotron_h": (0, 3),
    "zamba2": (0, 1, 2),  # its second layer has both
}
KERNELS = {
    "delta_net": "chunk_delta_rule",
    "gated_deltanet": "chunk_gated_delta_rule",
    "kda": "chunk_kda",
    **dict.fromkeys(GATED, "torch_chunk_gated_delta_rule"),
    **dict.fromkeys(MAMBA, "mamba2_chunk_scan"),
}
LENGTH, BURN_IN, EVERY = 280, 128, 16  # more than one block, and a last chunk that is not full
SETTINGS: dict[str, Any] = {
    "tokens": 2 * LENGTH,
    "length": LENGTH,
    "batch_size": 2,
    "burn_in": BURN_IN,
    "every": EVERY,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_text(tmp_path_factory.mktemp("text") / "words.jsonl", 1000)


@contextmanager
def recorded(live: torch.nn.Module, model: st.Checkpoint) -> Iterator[list[dict[str, Any]]]:
    """The arguments of every kernel call, in layer order; shares nothing with the tap."""
    home = sys.modules[type(next(iter(mixers(live, model).values()))).__module__]
    name = KERNELS[model.config["model_type"]]
    kernel, calls = getattr(home, name), list[dict[str, Any]]()
    signature = inspect.signature(kernel)

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(dict(signature.bind(*args, **kwargs).arguments))
        return kernel(*args, **kwargs)

    setattr(home, name, call)
    yield calls
    setattr(home, name, kernel)


def oracle(
    model_type: str, given: dict[str, Any], sequence: int, head: int
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Queries and keys [T, d_k] as the state sees them, and all states [d_v, d_k] of one head."""

    def of(name: str) -> Tensor:  # [T, ...] of this head, or of the key head it shares
        x = given[name][sequence].double()
        heads = given["beta" if "beta" in given else "dt"].shape[2]
        return x[:, head * x.shape[1] // heads]

    if model_type in MAMBA:
        q, k = of("C"), of("B")
        step = torch.log1p((of("dt") + given["dt_bias"][head].double()).exp())
        step = step.clamp(*given["dt_limit"])
        decay = step * given["A"][head].double()
        v = step[:, None] * of("hidden_states")
        return q, k, reference.linear_attention(q, k, v, decay)[1]
    short = model_type in PORTABLE
    q, k, v = (of(name) for name in (("q", "k", "v") if short else ("query", "key", "value")))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    if model_type == "delta_net":
        return q, k, reference.delta_rule(q, k, v, of("beta"))[1]
    rule = reference.kda if model_type == "kda" else reference.gated_delta_rule
    return q, k, rule(q, k, v, of("beta"), of("g"))[1]


def token_ids(model: st.Checkpoint, text: Path) -> Tensor:
    tokenizer = load_tokenizer(model)
    return sequences(text, tokenizer, tokens=2 * LENGTH, length=LENGTH).ids.long()


@pytest.mark.parametrize("model_type", RUNNABLE)
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

    live, heard = load(model), list[KernelCall]()
    with torch.inference_mode(), recorded(live, model) as calls, tap(live, model, heard.append):
        live(input_ids=token_ids(model, text), use_cache=False)
    assert len(calls) == len(heard) == len(geometry.layers)

    for given, call in zip(calls, heard, strict=True):
        layer = analysis.layers[call.layer]
        ours = {n: torch.cat([b.states for b in walk(call, n)], 1) for n in (64, 1)}
        assert ours[1].shape[1] == LENGTH and ours[64].shape[1] == math.ceil(LENGTH / 64)
        keys: dict[int, list[Tensor]] = {}
        queries: dict[int, list[Tensor]] = {}
        for head in range(geometry.num_v_heads):
            ranks, spectra = [], []
            for sequence in range(2):
                q, k, states = oracle(model_type, given, sequence, head)
                stacked = torch.stack(states)  # [T, d_v, d_k]
                size = stacked.abs().max()
                for every, found in ours.items():
                    ends = [*range(every, LENGTH, every), LENGTH]
                    truth = stacked[[end - 1 for end in ends]].mT
                    assert (found[sequence, :, head] - truth).abs().max() < 1e-10 * size
                sampled = stacked[[p - 1 for p in positions]].numpy()
                singular = np.linalg.svd(sampled, compute_uv=False)
                spectra.append(singular[[p > BURN_IN for p in positions]])
                ranks.append((singular**2).sum(1) / singular[:, 0] ** 2)
                group = head * geometry.num_k_heads // geometry.num_v_heads
                if head * geometry.num_k_heads % geometry.num_v_heads == 0:
                    keys.setdefault(group, []).append(k)
                    queries.setdefault(group, []).append(q)
            np.testing.assert_allclose(
                layer.effective_rank[head], np.mean(ranks, axis=0), rtol=1e-9
            )
            pooled = np.concatenate(spectra)
            np.testing.assert_allclose(
                layer.spectrum[head], pooled.mean(0), rtol=0, atol=1e-10 * pooled.max()
            )
            edges = np.linspace(-8, 4, BINS + 1)
            counts = np.histogram(np.log10(pooled).clip(-7.999, 3.999), edges)[0]
            # a value may fall on the other side of a bin's edge by its last digit
            assert np.abs(layer.histogram[head].numpy().cumsum() - counts.cumsum()).max() <= 1
        for found, rows in ((layer.key_condition, keys), (layer.query_condition, queries)):
            truth = [np.linalg.cond(torch.cat(rows[group]).numpy()) for group in sorted(rows)]
            np.testing.assert_allclose(found, truth, rtol=1e-6)


def test_utilization_is_effective_rank_over_the_narrower_width(checkpoint: Any, text: Path) -> None:
    model = st.open(checkpoint("gated_deltanet"))  # 12 key and 24 value channels
    analysis = st.analyze(model, text, **{**SETTINGS, "tokens": LENGTH, "every": "token"})
    heard = list[KernelCall]()
    live = load(model)
    with torch.inference_mode(), tap(live, model, heard.append):
        live(input_ids=token_ids(model, text)[:1], use_cache=False)
    states = torch.cat([block.states for block in walk(heard[1], 1)], 1)[0]
    torch.testing.assert_close(
        analysis.utilization[1], rank_utilization(states).T, rtol=1e-9, atol=0
    )
    late = rank_utilization(states)[BURN_IN:].mean(0)
    torch.testing.assert_close(analysis.mean_utilization[1], late, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        analysis.curve, analysis.utilization.mean((0, 1)), rtol=1e-12, atol=0
    )
    assert analysis.utilization[..., 0].allclose(torch.tensor(1 / 12).double()), "rank one at first"


@pytest.mark.parametrize("bounded", [False, True])
def test_gates_that_a_kernel_computes_itself_are_understood(bounded: bool) -> None:
    """fla's GPU kernels take the raw gates; the states are those of the finished ones."""
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
        next(walk(KernelCall(0, key, key, value, "chunk_kda", given), 8)).states
        for given in (finished, unfinished)
    )
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_a_recurrence_that_is_not_known_is_refused() -> None:
    x = torch.randn(1, 8, 2, 4)
    for kernel, given, says in (
        ("chunk_comba", {}, "does not know the recurrence of 'chunk_comba'"),
        ("chunk_kda", {"initial_state": x}, "without a cache"),
        ("chunk_kda", {"cu_seqlens": x}, "packed"),
    ):
        with pytest.raises(st.StatetrimError, match=says):
            next(walk(KernelCall(0, x, x, x, kernel, given), 8))


def test_filters_of_a_head_are_compared_pair_by_pair() -> None:
    alike = torch.tensor([1.0, 2.0, 0.0, -1.0]).expand(3, 4) * torch.tensor([[1.0], [-2.0], [5.0]])
    apart = torch.eye(4)[:3]
    filters = torch.stack([alike, apart]).unsqueeze(2).double()  # [heads, channels, copies, width]
    torch.testing.assert_close(filter_similarity(filters), torch.tensor([1.0, 0.0]).double())
    random = torch.randn(1, 2000, 1, 4, dtype=torch.float64)
    assert abs(float(filter_similarity(random)) - 4 / (3 * math.pi)) < 0.01


@pytest.mark.parametrize("model_type", RUNNABLE)
def test_filters_are_the_live_models_own(model_type: str, checkpoint: Any) -> None:
    model = st.open(checkpoint(model_type))
    g, live = model.geometry, load(model)
    for layer, mixer in mixers(live, model).items():
        found = model.filters(layer)
        assert found is not None
        width = g.num_k_heads * g.head_k_dim
        if hasattr(mixer, "k_conv1d"):
            query, key = mixer.q_conv1d.weight, mixer.k_conv1d.weight
        elif model_type in MAMBA:  # [ x | B | C ]
            _, key, query = mixer.conv1d.weight.split([g.num_v_heads * g.head_v_dim, width, width])
        else:  # [ q | k | v ]
            query, key, _ = mixer.conv1d.weight.split([width, width, g.num_v_heads * g.head_v_dim])
        for ours, theirs in zip(found, (query, key), strict=True):
            assert torch.equal(ours.flatten(0, 2), theirs.squeeze(1).double())
