"""Sums compared with a plain recomputation from captured activations and autograd."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers.masking import output_projection, recorded_calls
from helpers.sums import assert_statistics_close
from statetrim.artifacts.statistics import Statistics
from statetrim.methods import method_names
from statetrim.progress import Progress
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.live import find_mixers
from statetrim.runtime.loading import load
from statetrim.statistics import STATISTICS
from statetrim.statistics.readouts import REFIT_STATISTICS

# Hyper-connections, MoE and vision wrappers share the mixer of the types below.
PORTABLE = ("delta_net", "gated_deltanet", "kda")
RUNNABLE = (*PORTABLE, "qwen3_next", "qwen3_5_text", "olmo_hybrid", "mamba2", "bamba")
ALL = ("drrqr", "grad", "s_wanda", "energy", "product", "ghost", "readout_greedy")
SETTINGS: dict[str, Any] = {"tokens": 320, "length": 20, "batch_size": 4, "recall": 0.0}


@contextmanager
def recorded(mixers: dict[int, Any]) -> Iterator[dict[str, list[Tensor]]]:
    """Capture q and k of every kernel call, and the inputs of every mixer and output projection."""
    captured: dict[str, list[Tensor]] = {"q": [], "k": [], "x": [], "a": []}

    def on_mixer(_: Any, args: Any, kwargs: Any) -> None:
        captured["x"].append(args[0] if args else kwargs["hidden_states"])

    def on_projection(_: Any, args: Any) -> None:
        captured["a"].append(args[0])

    with ExitStack() as stack:
        code = sys.modules[type(next(iter(mixers.values()))).__module__]
        calls = stack.enter_context(recorded_calls(code))
        for mixer in mixers.values():
            projection = output_projection(mixer)
            stack.enter_context(mixer.register_forward_pre_hook(on_mixer, with_kwargs=True))
            stack.enter_context(projection.register_forward_pre_hook(on_projection))
        yield captured
    for _, arguments in calls:
        for side, names in (("q", ("q", "query", "C")), ("k", ("k", "key", "B"))):
            captured[side].append(next(arguments[name] for name in names if name in arguments))


def gram(x: Tensor, head: int) -> Tensor:
    rows = x[:, :, head].reshape(-1, x.shape[-1]).double()
    return sum(torch.outer(row, row) for row in rows)  # type: ignore[return-value]


@pytest.mark.parametrize("model_type", RUNNABLE)
def test_sums_equal_a_plain_recomputation(model_type: str, checkpoint: Any, text: Path) -> None:
    model = st.open(checkpoint(model_type))
    statistics = st.calibrate(model, text, methods=ALL, **SETTINGS)
    assert statistics.sum_names == set(STATISTICS) - {
        *(each.name for each in REFIT_STATISTICS),
        "state_ranks",
    }

    live = load(model)
    modules = find_mixers(live, model)
    data = Corpus(text, model).read(tokens=SETTINGS["tokens"], length=SETTINGS["length"])
    ids = data.ids.long()
    with recorded(modules) as captured:
        logits = live(input_ids=ids, use_cache=False).logits.double()
    log_p = logits[:, :-1].log_softmax(-1)
    loss = -log_p.gather(-1, ids[:, 1:, None]).sum()
    loss.backward()

    geometry = model.geometry
    for number, layer in enumerate(geometry.layers):
        sums = statistics.layers[layer]
        assert sums.tokens == SETTINGS["tokens"]
        x = captured["x"][number].detach().double()
        torch.testing.assert_close(sums["input_square"], x.square().sum((0, 1)), rtol=1e-5, atol=0)
        readout = captured["a"][number].detach().unflatten(-1, (geometry.num_v_heads, -1))
        for head in range(geometry.num_v_heads):
            expected = gram(readout, head)
            torch.testing.assert_close(sums["readout_gram"][head], expected, rtol=1e-4, atol=1e-4)
        for side, values in (("query", captured["q"]), ("key", captured["k"])):
            value = values[number].detach()
            value = value[:, :, :: value.shape[2] // geometry.num_k_heads]
            unit = value.double()
            if "mamba" not in str(model.family.mixer_prefixes):
                unit = unit / (unit.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            for head in range(geometry.num_k_heads):
                # activations of another batch size differ in float32's last digits
                for part, activations in (("gram", value), ("unit_gram", unit)):
                    actual = sums[f"{side}_{part}"][head]
                    expected = gram(activations, head)
                    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    check_gradients(model, modules, statistics)


def check_gradients(model: st.Checkpoint, modules: dict[int, Any], statistics: Statistics) -> None:
    """Gradient sums equal autograd's gradients of the rows that belong to the channels."""
    for layer, mixer in modules.items():
        sums = statistics.layers[layer]
        total = torch.cat([sums["query_gradient"], sums["key_gradient"]]).abs().max()
        for side in ("query", "key"):
            rows = projection_gradient(model, mixer, f"{side[0]}_proj")
            assert (sums[f"{side}_gradient"].squeeze(2) - rows).abs().max() < 1e-4 * total


def projection_gradient(model: st.Checkpoint, mixer: Any, side: str) -> Tensor:
    """[heads, channels, hidden], by the layouts in families.md, not by the family's code."""
    g = model.geometry
    heads, dim = g.num_k_heads, g.head_k_dim
    if hasattr(mixer, "in_proj_qkvz"):  # per key head [ q | k | v | z ]
        blocks = mixer.in_proj_qkvz.weight.grad.reshape(heads, -1, mixer.hidden_size)
        return blocks[:, :dim] if side == "q_proj" else blocks[:, dim : 2 * dim]
    if hasattr(mixer, "in_proj_qkv"):  # [ q | k | v ]
        q, k, _ = mixer.in_proj_qkv.weight.grad.split(
            [heads * dim, heads * dim, g.num_v_heads * g.head_v_dim]
        )
        return (q if side == "q_proj" else k).reshape(heads, dim, -1)
    if hasattr(mixer, "q_proj"):
        return getattr(mixer, side).weight.grad.reshape(heads, dim, -1)
    inner = g.num_v_heads * g.head_v_dim  # Mamba-2: [ gate | x | B | C | dt ]
    _, _, b, c, _ = mixer.in_proj.weight.grad.split(
        [inner, inner, heads * dim, heads * dim, g.num_v_heads]
    )
    return (c if side == "q_proj" else b).reshape(heads, dim, -1)


def test_two_halves_add_up_to_the_whole(checkpoint: Any, text: Path, tmp_path: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    whole = st.calibrate(model, text, methods=ALL, **SETTINGS)
    half = {**SETTINGS, "tokens": 160}
    st.calibrate(model, text, methods=ALL, **half, out=tmp_path / "a.safetensors")
    st.calibrate(model, text, methods=ALL, **half, skip=160, out=tmp_path / "b.safetensors")
    parts = [Statistics.load(tmp_path / name) for name in ("a.safetensors", "b.safetensors")]
    layers = {layer: sums + parts[1].layers[layer] for layer, sums in parts[0].layers.items()}
    added = Statistics(layers, whole.lineage)
    assert_statistics_close(whole, added, 1e-12)
    for method in method_names("key"):
        first, second = (
            st.select(model, [method, "readout_greedy"], "6x4", statistics=s)
            for s in (whole, added)
        )
        assert first.digest == second.digest and first.axes.keys() == {"key", "value"}


def test_an_interrupted_run_is_neither_mixed_nor_overwritten(
    checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    out = tmp_path / "s.safetensors"
    arguments: Any = {"methods": ["drrqr"], **SETTINGS, "out": out, "layerwise": True}

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        st.calibrate(model, text, **arguments, progress=stop)
    with pytest.raises(st.StatetrimError, match=r"another job .its 'data' differs"):
        st.calibrate(model, text, skip=20, **arguments)
    finished = st.calibrate(model, text, **arguments)
    assert_statistics_close(finished, Statistics.load(out), 0.0)
    with pytest.raises(st.StatetrimError, match="not overwritten"):
        st.calibrate(model, text, **arguments)


def test_statistics_of_another_model_or_method_are_refused(checkpoint: Any, text: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    statistics = st.calibrate(model, text, methods=["s_wanda"], **SETTINGS)
    needed = {"input_square", "output_square"}
    assert statistics.sum_names == needed, "nothing is summed that nobody needs"
    with pytest.raises(st.StatetrimError, match=r"'drrqr' needs query_gram.*--for drrqr"):
        st.select(model, "drrqr", "6x100%", statistics=statistics)
    with pytest.raises(st.StatetrimError, match="'grad' needs query_gradient"):
        st.select(model, "grad", "6x100%")
    with pytest.raises(st.StatetrimError, match="another model"):
        st.select(checkpoint("qwen3_5_moe_text"), "s_wanda", "6x100%", statistics=statistics)
    with pytest.raises(st.StatetrimError, match="needs no calibration"):
        st.calibrate(model, text, methods=["rand", "l1"], **SETTINGS)
    with pytest.raises(st.StatetrimError, match="'grad' needs the whole model"):
        st.calibrate(model, text, methods=["grad"], layerwise=True, **SETTINGS)


def test_a_layer_without_a_kernel_call_is_an_error(
    checkpoint: Any, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    recurrent = ("torch_recurrent_gated_delta_rule",)
    monkeypatch.setattr(type(model.family), "kernels", recurrent)  # prefill calls the other one
    with pytest.raises(st.StatetrimError, match=r"layers \[0, 2\] never called"):
        st.calibrate(model, text, methods=["drrqr"], **SETTINGS)


def test_ready_sequences_count_like_the_text_they_were_made_of(checkpoint: Any, text: Path) -> None:
    model = st.open(checkpoint("delta_net"))
    data = Corpus(text, model).read(tokens=320, length=20)
    ready = st.calibrate(model, data, methods=ALL, batch_size=4)
    assert_statistics_close(st.calibrate(model, text, methods=ALL, **SETTINGS), ready, 0.0)
    assert ready.lineage["data"] == [data.lineage]


def test_spoiled_statistics_and_options_are_one_sentence(checkpoint: Any, text: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    statistics = st.calibrate(model, text, methods=ALL, **SETTINGS)
    first, *_ = statistics.layers
    for method, part in (
        ("drrqr", "key_gram"),
        ("grad", "key_gradient"),
        ("s_wanda", "input_square"),
        ("readout_greedy", "readout_gram"),
    ):
        sums = statistics.layers[first][part]
        for spoiled in (None, sums[..., :-1], sums * float("nan")):
            kept = {**statistics.layers[first].sums, part: spoiled}
            kept = {name: value for name, value in kept.items() if value is not None}
            layer = replace(statistics.layers[first], sums=kept)
            broken = Statistics({**statistics.layers, first: layer}, statistics.lineage)
            to = "6x4" if part == "readout_gram" else "6x100%"
            with pytest.raises(st.StatetrimError, match=part):
                st.select(model, [method, "l1"], to, statistics=broken)
    for tolerance in (1.0, "much"):
        options: Any = {"statistics": statistics, "method_options": {"tolerance": tolerance}}
        with pytest.raises(st.StatetrimError, match="method 'drrqr' cannot continue"):
            st.select(model, "drrqr", "6x100%", **options)
