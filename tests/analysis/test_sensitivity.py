"""Masking one layer equals putting that layer's mixer of a cut on disk into the original, and the
error that masking predicts equals that of a refitted cut on disk."""

import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import statetrim as st
from helpers.reads import record_tensor_reads
from statetrim.analysis import predict as prediction_module
from statetrim.analysis import sensitivity as analysis
from statetrim.analysis.options import SensitivityOptions
from statetrim.analysis.predict import predict
from statetrim.artifacts.decision import Prediction
from statetrim.artifacts.plan import AxisPlan
from statetrim.artifacts.samples import Samples
from statetrim.artifacts.sensitivity import LayerCut, Sensitivity
from statetrim.artifacts.statistics import LayerStatistics
from statetrim.cut.shape import ChannelAxis
from statetrim.defaults import REFIT_DAMPING
from statetrim.progress import Progress
from statetrim.runtime import kernel_hooks
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.live import find_mixers
from statetrim.statistics.readouts import fit_projection, relative_error
from statetrim.storage.text import Sequences
from statetrim.tasks.recall import associations

WINDOWS, ROWS, LENGTH = 4, 4, SensitivityOptions.length
TYPES = ("gated_deltanet", "qwen3_next", "olmo_hybrid", "mamba2")


def sensitivity(
    model: st.Checkpoint, plans: list[st.Plan], text: Path, **options: Any
) -> Sensitivity:
    return analysis.sensitivity(model, plans, SensitivityOptions(text, **options))


@contextmanager
def grafted(live: nn.Module, own: nn.Module, other: nn.Module) -> Iterator[None]:
    """Within, the original has a mixer of the cut in place of its own."""
    name = next(name for name, module in live.named_modules() if module is own)
    parent, leaf = live.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
    setattr(parent, leaf, other)
    yield
    setattr(parent, leaf, own)


@torch.inference_mode()
def plain_nll(live: Any, ids: Tensor) -> Tensor:
    """Mean negative log-likelihood [rows], from the model's own logits."""
    logits = live(input_ids=ids.long(), use_cache=False).logits[:, :-1].double()
    return functional.cross_entropy(logits.mT, ids[:, 1:].long(), reduction="none").mean(1)


@torch.inference_mode()
def plain_recall(live: Any, pairs: int, rows: int) -> Tensor:
    ids, positions = associations(live.config.get_text_config().vocab_size, pairs, rows)
    best = live(input_ids=ids, use_cache=False).logits.argmax(-1)
    return (best[:, positions] == ids[:, positions + 1]).double().mean(1)


@pytest.mark.parametrize("model_type", TYPES)
def test_a_layer_alone_is_that_layer_of_the_cut_checkpoint(
    checkpoint: Callable[[str], Path], model_type: str, text: Path, tmp_path: Path
) -> None:
    model = st.open(checkpoint(model_type))
    plans: dict[ChannelAxis, st.Plan] = {
        "key": st.select(model, "rand", "50%x100%"),
        "value": st.select(model, to="100%x4", method="rand"),
    }
    result = sensitivity(model, list(plans.values()), text, windows=WINDOWS, rows=ROWS)
    ids = Corpus(text, model).read(tokens=WINDOWS * LENGTH, length=LENGTH).ids
    live = st.load(model)
    assert torch.tensor(result.original.nll) == pytest.approx(plain_nll(live, ids), abs=1e-4)
    for axis, plan in plans.items():
        small = st.prune(model, plan, tmp_path / axis)
        mixers, cut_mixers = find_mixers(live, model), find_mixers(st.load(small), small)
        for layer in model.geometry.layers:
            cut = result.find(layer, axis, plan.counts(axis)[layer])
            with grafted(live, mixers[layer], cut_mixers[layer]):
                expected = plain_nll(live, ids)
                recalled = {p: plain_recall(live, p, ROWS) for p in cut.samples.recall}
            assert cut.samples.nll == pytest.approx(expected.tolist(), abs=1e-4)
            for pairs, right in recalled.items():
                assert cut.samples.recall[pairs] == pytest.approx(right.tolist(), abs=1.01 / pairs)
            assert max(cut.samples.kl) > 0


@pytest.mark.parametrize("model_type", ["delta_net", "qwen3_next"])
def test_from_disk_it_is_the_same_and_weights_are_read_once_for_a_cut(
    checkpoint: Callable[[str], Path], model_type: str, text: Path
) -> None:
    model = st.open(checkpoint(model_type))
    plan = st.select(model, "rand", "50%x4")
    options: dict[str, Any] = {"windows": WINDOWS, "rows": ROWS, "batch_size": 1}
    in_memory = sensitivity(model, [plan], text, **options)
    with record_tensor_reads(model) as read_names:
        streamed = sensitivity(model, [plan], text, layerwise=True, **options)
    assert streamed == in_memory
    first = f"layers.{model.geometry.layers[0]}."
    of_the_first = {name: read_names.count(name) for name in read_names if first in name}
    assert set(of_the_first.values()) == {1 + len(in_memory.cuts)}


def test_a_killed_run_resumes(
    checkpoint: Callable[[str], Path], text: Path, tmp_path: Path
) -> None:
    model = st.open(checkpoint("delta_net"))
    plans = [st.select(model, "rand", "50%x100%")]
    options: dict[str, Any] = {"windows": WINDOWS, "rows": ROWS}
    out = tmp_path / "found.json"

    def kill(progress: Progress) -> None:
        if progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sensitivity(model, plans, text, out=out, progress=kill, **options)
    assert not out.exists() and (tmp_path / "found.json.partial").exists()
    with pytest.raises(st.StatetrimError, match=r"another job .its 'rows' differs"):
        sensitivity(model, plans, text, out=out, windows=WINDOWS, rows=ROWS + 1)
    sensitivity(model, plans, text, out=out, **options)
    uninterrupted = sensitivity(model, plans, text, **options)
    assert Sensitivity.load(out) == uninterrupted != replace(uninterrupted, lineage={"a": 1})
    assert json.loads(out.read_text())["finding"] == uninterrupted.sentence
    assert not (tmp_path / "found.json.partial").exists()
    with pytest.raises(st.StatetrimError, match="not overwritten"):
        sensitivity(model, plans, text, out=out, **options)


def test_refuses_plans_that_compare_nothing(checkpoint: Callable[[str], Path], text: Path) -> None:
    model = st.open(checkpoint("delta_net"))
    plan = st.select(model, "rand", "50%x100%")
    with pytest.raises(st.StatetrimError, match="each width once"):
        sensitivity(model, [plan, plan], text, windows=2, rows=2)
    with pytest.raises(st.StatetrimError, match="nothing to compare"):
        everything = {
            layer: torch.arange(12).repeat(len(kept), 1)
            for layer, kept in plan.axes["key"].kept.items()
        }
        whole = st.Plan({"key": AxisPlan(everything, "none")})
        sensitivity(model, [whole], text, windows=2, rows=2)
    other = st.open(checkpoint("gated_deltanet"))
    with pytest.raises(st.StatetrimError, match="another model"):
        sensitivity(other, [plan], text, windows=2, rows=2)


def make_sensitivity(drops: dict[int, float], original: float = 0.9) -> Sensitivity:
    """Sensitivity to pruning keys of three layers, with `drops` of recall in every sequence."""

    def samples(recall: float) -> Samples:
        return Samples([5.0, 5.5], [0.0, 0.0], {16: [recall] * 8, 63: [recall] * 8})

    cuts = [LayerCut(i, "key", 16, samples(original - drop)) for i, drop in drops.items()]
    return Sensitivity(samples(original), cuts, {"key": 64, "value": 64})


def test_the_sentence_names_the_layers_that_carry_the_loss() -> None:
    for drops, original, words in (
        ((0.5, 0.02, 0.0), 0.9, "carried by layer 0 at 16 of 64 key channels"),
        ((0.5, 0.02, 0.0), 0.9, "any other layer at most 2"),
        ((0.3, 0.02, 0.4), 0.9, "spread over layers 0, 2"),
        ((0.3, 0.0, 0.4), 0.9, "largest is that of layer 2, 40 ± 0 points"),
        ((0.0, -0.1, 0.0), 0.9, "No layer alone costs recall"),
        ((0.0, 0.0, 0.0), 0.01, "does not recall"),
    ):
        assert words in make_sensitivity(dict(enumerate(drops)), original).sentence


def drawn(seed: int, rows: int = 16) -> Sequences:
    ids = torch.randint(1, 60, (rows, 32), generator=torch.Generator().manual_seed(seed))
    return Sequences(ids, {"seed": seed})


@pytest.mark.parametrize("model_type", ["gated_deltanet", "qwen3_next", "mamba2"])
def test_prediction_equals_the_cut_on_disk(
    model_type: str, checkpoint: Any, tmp_path: Path
) -> None:
    model = st.open(checkpoint(model_type))
    half = model.geometry.head_k_dim // 2
    values = model.geometry.head_v_dim // 2
    plans = {
        "keys": st.select(model, "l1", f"{half}x100%"),
        "values": st.select(model, to=f"100%x{values}", method="readout_l1"),
        "both": st.select(model, "l1,readout_l1", f"{half}x{values}"),
        "heads": st.select(model, "rand", f"{model.geometry.num_v_heads // 2}heads"),
    }
    fitted = {"a": drawn(0), "b": drawn(1)}
    measured = {"a": drawn(2), "b": drawn(3)}
    prediction = predict(model, plans, fitted, measured, max_bytes=1)  # a layer at a time
    for name, plan in plans.items():
        small = st.prune(model, plan, tmp_path / name)
        sums = {n: st.calibrate(small, d, original=model) for n, d in fitted.items()}
        tests = {n: st.calibrate(small, d, original=model) for n, d in measured.items()}
        for layer in model.geometry.layers:
            gram: Any = 0
            target: Any = 0
            for source_statistics in sums.values():
                layer_sums = source_statistics.layers[layer]
                gram = gram + layer_sums["readout_moment"] / layer_sums["target_square"]
                target = target + layer_sums["target_moment"] / layer_sums["target_square"]
            # The norm's weight was multiplied into the projection of the cut, so its read-out
            # differs by a factor per channel, which the fit absorbs (except for the damping).
            moments = {"readout_moment": gram, "target_moment": target}
            weight = fit_projection(LayerStatistics(0, moments), REFIT_DAMPING)
            for source, test in tests.items():
                expected = relative_error(weight, test.layers[layer])
                assert prediction.errors[name][source][layer] == pytest.approx(expected, rel=1e-3)


def test_all_layers_at_once_give_the_same(checkpoint: Any) -> None:
    model = st.open(checkpoint("qwen3_next"))
    plans = {"half": st.select(model, "l1", "50%x100%")}
    layer_by_layer, all_at_once = (
        predict(model, plans, {"a": drawn(0)}, {"a": drawn(1)}, max_bytes=size)
        for size in (1, 2**40)
    )
    for layer, error in layer_by_layer.errors["half"]["a"].items():
        assert all_at_once.errors["half"]["a"][layer] == pytest.approx(error, rel=1e-9)


def test_no_activations_are_kept(checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a layer at a time, those of the other layers were, for every batch."""
    model, seen, most = st.open(checkpoint("qwen3_next")), list[weakref.ref[Any]](), 0

    def counted(*args: Any, on_readout: Any = None, **options: Any) -> Any:
        def count(readout: Any) -> None:
            nonlocal most
            seen.append(weakref.ref(readout))
            most = max(most, sum(reference() is not None for reference in seen))
            on_readout(readout)

        return kernel_hooks.hook_kernels(*args, on_readout=on_readout and count, **options)

    monkeypatch.setattr(prediction_module, "hook_kernels", counted)
    plans = {"half": st.select(model, "l1", "50%x100%")}
    predict(model, plans, {"a": drawn(0)}, {"a": drawn(1)}, max_bytes=1, batch_size=2)
    assert len(model.geometry.layers) > 1 and len(seen) > 16 and most <= 2


def test_a_layer_without_readout_is_an_error(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hook_kernels(*args: Any, on_readout: Any = None, **options: Any) -> Any:
        return kernel_hooks.hook_kernels(*args, **options)

    monkeypatch.setattr(prediction_module, "hook_kernels", hook_kernels)
    model = st.open(checkpoint("qwen3_next"))
    plans = {"half": st.select(model, "l1", "50%x100%")}
    with pytest.raises(st.StatetrimError, match="never calls its output projection"):
        predict(model, plans, {"a": drawn(0)}, {"a": drawn(1)})


def test_more_channels_miss_less(checkpoint: Any, tmp_path: Path) -> None:
    model = st.open(checkpoint("delta_net"))
    widths = range(2, model.geometry.head_k_dim, 3)
    plans = {str(width): st.select(model, "l1", f"{width}x100%") for width in widths}
    prediction = predict(model, plans, {"a": drawn(0)}, {"a": drawn(1)})
    assert prediction.ranked == [str(width) for width in reversed(widths)]
    prediction.save(tmp_path / "prediction.json")
    assert Prediction.load(tmp_path / "prediction.json") == prediction
