"""The refit against least squares on the captured features, in float64."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import statetrim as st
from helpers import tiny
from helpers.fused import fuse_output_projections
from helpers.masking import output_projection
from helpers.refusal import check_refusal, fingerprint, run
from helpers.sums import assert_statistics_close, layer_errors
from statetrim.artifacts.plan import AxisPlan
from statetrim.artifacts.statistics import LayerStatistics, Statistics
from statetrim.progress import Progress
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.live import find_mixers
from statetrim.runtime.loading import load
from statetrim.statistics.readouts import REFIT_STATISTICS, fit_projection
from statetrim.surgery.refit import _check_statistics

# One of each way a mixer is called, of biased output projections (bamba), and KDA, keys only.
TYPES = ("gated_deltanet", "kda", "qwen3_next", "olmo_hybrid", "bamba")
SETTINGS: dict[str, Any] = {"tokens": 640, "length": 20, "batch_size": 4, "recall": 0.0}


def cut(model: st.Checkpoint, out: Path) -> st.Checkpoint:
    values = "100%" if model.config["model_type"] == "kda" else "4"
    plan = st.select(model, "rand", f"8x{values}", seed=3)
    return st.prune(model, plan, out)


def captured(
    model: st.Checkpoint, small: st.Checkpoint, ids: Tensor
) -> dict[int, tuple[Tensor, Tensor]]:
    """Layer -> read-out of the cut's mixer, and the original's output without bias, for the inputs
    that the original's mixer gets."""
    original, pruned = load(model), load(small)
    inputs: dict[int, tuple[Any, Any]] = {}
    readout: dict[str, Tensor] = {}
    pairs: dict[int, tuple[Tensor, Tensor]] = {}
    targets: dict[int, Tensor] = {}
    for layer, mixer in find_mixers(original, model).items():
        mixer.register_forward_pre_hook(
            lambda _, args, kwargs, i=layer: inputs.update({i: (args, kwargs)}), with_kwargs=True
        )
        output_projection(mixer).register_forward_pre_hook(
            lambda p, args, i=layer: targets.update({i: args[0].double() @ p.weight.double().mT})
        )
    with torch.no_grad():
        original.base_model(input_ids=ids, use_cache=False)
        for layer, mixer in find_mixers(pruned, small).items():
            hook = output_projection(mixer).register_forward_pre_hook(
                lambda _, args: readout.update(a=args[0])
            )
            args, kwargs = inputs[layer]
            mixer(*args, **kwargs)
            hook.remove()
            pairs[layer] = readout["a"].flatten(0, 1).double(), targets[layer].flatten(0, 1)
    return pairs


@pytest.mark.parametrize("model_type", TYPES)
def test_the_refit_is_least_squares_on_what_the_layers_read_out(
    model_type: str, checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    model = st.open(checkpoint(model_type))
    small = cut(model, tmp_path / "small")
    statistics = st.calibrate(small, text, original=model, **SETTINGS)
    assert statistics.sum_names == {each.name for each in REFIT_STATISTICS}
    damping = 1e-8
    refitted = st.refit(small, statistics, out=tmp_path / "refitted", damping=damping)
    ids = Corpus(text, model).read(tokens=640, length=20).ids.long()
    for layer, (features, target) in captured(model, small, ids).items():
        ridge = (damping * features.square().sum(0).mean()).sqrt() * torch.eye(features.shape[1])
        rows = torch.cat([features, ridge.double()]).numpy()
        goal = torch.cat([target, torch.zeros(features.shape[1], target.shape[1])]).numpy()
        oracle = torch.from_numpy(np.linalg.lstsq(rows, goal, rcond=None)[0].T)
        weight = refitted.output_weight(layer)
        # Features come from batches of another size, so they differ in float32's last digits.
        assert (weight - oracle).abs().max() < 1e-4 * oracle.abs().max()
        before = (features @ small.output_weight(layer).mT - target).square().sum()
        after = (features @ weight.mT - target).square().sum()
        best = (features @ oracle.mT - target).square().sum()
        assert best <= after * (1 + 1e-9) and after <= best * 1.001 < before
        errors = json.loads((refitted.path / "statetrim" / "refit.json").read_text())["layers"]
        total = target.square().sum()
        assert errors[str(layer)]["before"] == pytest.approx(float(before / total), rel=1e-4)
        assert errors[str(layer)]["after"] == pytest.approx(float(after / total), rel=1e-3)
    assert layer_errors(refitted, statistics) == pytest.approx(
        {int(i): error["after"] for i, error in errors.items()}
    )


def test_without_damping_it_solves_the_normal_equations_in_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(200, 12, generator=generator, dtype=torch.float64)
    target = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    sums = LayerStatistics(
        200, {"readout_moment": features.mT @ features, "target_moment": target.mT @ features}
    )
    oracle = np.linalg.lstsq(features.numpy(), target.numpy(), rcond=None)[0].T
    np.testing.assert_allclose(fit_projection(sums, 0.0).numpy(), oracle, rtol=1e-10, atol=1e-12)
    twice = torch.cat([features, features[:, :1]], dim=1)
    moments = {"readout_moment": twice.mT @ twice, "target_moment": target.mT @ twice}
    copied = LayerStatistics(200, moments)
    with pytest.raises(st.StatetrimError, match="larger damping"):
        fit_projection(copied, 0.0)
    assert fit_projection(copied, 1e-8).isfinite().all()


def test_a_cut_that_drops_only_dead_channels_is_repaired_exactly(
    checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    """The norm averages over fewer channels, which changes the scale; the fit corrects it."""
    model_path = shutil.copytree(checkpoint("gated_deltanet"), tmp_path / "model")
    dead = torch.arange(24) % 2 == 1
    for name in tiny.tensors(model_path):
        if "v_conv1d" in name:
            rows = dead.repeat(4).nonzero().flatten()
            tiny.rewrite(model_path, name, lambda x, rows=rows: x.index_fill(0, rows, 0.0))
    model = st.open(model_path)
    alive = dict.fromkeys(model.geometry.layers, (~dead).nonzero().squeeze(1).repeat(4, 1))
    plan = st.Plan({"value": AxisPlan(alive, "none")}, lineage={"source": model.digest})
    small = st.prune(model, plan, tmp_path / "small")
    statistics = st.calibrate(small, text, original=model, **SETTINGS)
    before = layer_errors(small, statistics)
    after = layer_errors(st.refit(small, statistics, out=tmp_path / "out", damping=0.0), statistics)
    # The scale falls by sqrt(2) for every token, so the relative residual is (1 - 1/sqrt(2))^2
    # before and 0 after, except for tokens whose read-out is as small as the norm's epsilon.
    assert all(error == pytest.approx(0.0858, rel=0.02) for error in before.values())
    assert all(abs(error) < 3e-4 for error in after.values())


def test_only_output_projections_change_by_sums_that_layerwise_are_the_same(
    checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_next"))
    small = cut(model, tmp_path / "small")
    statistics = st.calibrate(small, text, original=model, **SETTINGS)
    out = tmp_path / "s.safetensors"
    layerwise = st.calibrate(small, text, original=model, layerwise=True, out=out, **SETTINGS)
    assert_statistics_close(statistics, layerwise, 1e-12)
    assert_statistics_close(statistics, Statistics.load(out), 1e-12)
    refitted = st.refit(small, statistics, out=tmp_path / "out")
    for path in sorted(small.path.rglob("*")):
        other = refitted.path / path.relative_to(small.path)
        if path.suffix == ".safetensors":
            before, after = load_file(path), load_file(other)
            changed = {name for name in before if not torch.equal(before[name], after[name])}
            assert all(name.endswith("linear_attn.out_proj.weight") for name in changed)
            assert path.stat().st_size == other.stat().st_size
        elif path.is_file() and path.name != "README.md":
            assert path.read_bytes() == other.read_bytes()
    card = (refitted.path / "README.md").read_text()
    # Measurements of the old weights are removed; the rest of the card stays; the refit is added.
    before_card = (small.path / "README.md").read_text()
    opening, _, after_quality = before_card.partition("Its quality was not measured")
    history = after_quality[after_quality.index("## How it was made") :].rstrip()
    history, unchanged, _ = history.partition("All other tensors are the original's")
    assert unchanged and unchanged not in card
    assert card.startswith(opening) and history in card and "## Refit" in card
    assert st.refit(small, statistics, out=tmp_path / "out").path == refitted.path, "done already"
    cls = tiny.stock_class("qwen3_next")
    _, info = cls.from_pretrained(refitted.path, output_loading_info=True)
    assert not any(info.values())


def test_it_is_refused_without_fitting_data(checkpoint: Any, text: Path, tmp_path: Path) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    small = cut(model, tmp_path / "small")
    before = fingerprint(tmp_path)
    command = ["refit", str(small.path), "-o", str(tmp_path / "out")]
    check_refusal(*run(command), "calibrate SMALL --orig")
    selection = st.calibrate(small, text, methods=["drrqr"], **SETTINGS)
    few = st.calibrate(small, text, original=model, tokens=12, length=6, batch_size=1, recall=0.0)
    enough = st.calibrate(small, text, original=model, **SETTINGS)
    other = cut(st.open(checkpoint("qwen3_5_moe_text")), tmp_path / "other")
    least = {layer: replace(sums, tokens=16) for layer, sums in enough.layers.items()}
    _check_statistics(small, replace(enough, layers=least))
    first = next(iter(enough.layers))
    sums = enough.layers[first]
    for statistics, target, message in (
        (None, small, "calibrate SMALL --original"),
        (selection, small, "calibrate SMALL --original"),
        (few, small, "12 tokens do not determine the 16 columns"),
        (enough, other, "another model"),
        *(
            (spoiled(enough, first, name, value), small, f"no usable '{name}'")
            for name in (each.name for each in REFIT_STATISTICS)
            for value in (sums[name][:-1], sums[name] * float("nan"))
        ),
    ):
        with pytest.raises(st.StatetrimError, match=message):
            st.refit(target, statistics, out=tmp_path / "out")
    for damping in (-1.0, 1.0, float("nan")):
        with pytest.raises(st.StatetrimError, match="damping"):
            st.refit(small, enough, out=tmp_path / "out", damping=damping)
    assert not (tmp_path / "out").exists()
    assert {k: v for k, v in fingerprint(tmp_path).items() if not k.startswith("other")} == before


def spoiled(statistics: Statistics, layer: int, name: str, value: Tensor) -> Statistics:
    sums = statistics.layers[layer].sums
    changed = replace(statistics.layers[layer], sums={**sums, name: value})
    return Statistics({**statistics.layers, layer: changed}, statistics.lineage)


def test_a_model_that_was_not_cut_from_the_original_is_refused(
    checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    small = cut(model, tmp_path / "small")
    for a, b in ((model, small), (small, st.open(checkpoint("delta_net")))):
        with pytest.raises(st.StatetrimError, match="was not cut from"):
            st.calibrate(a, text, original=b, **SETTINGS)


def test_the_command_line_shows_every_layer(checkpoint: Any, text: Path, tmp_path: Path) -> None:
    model = st.open(checkpoint("delta_net"))
    small, sums = cut(model, tmp_path / "small"), tmp_path / "sums.safetensors"
    where = ["--text", str(text), "--tokens", "640", "--length", "20"]
    code, err, _ = run(
        ["calibrate", str(small.path), "--original", str(model.path), *where, "-o", str(sums)]
    )
    assert code is None, err
    arguments = ["refit", str(small.path), "--statistics", str(sums), "-o", str(tmp_path / "out")]
    code, err, out = run([*arguments, "--json"])
    assert code is None, err
    layers = json.loads(out)["layers"]
    assert layers.keys() == {"0", "1"}
    assert all(0 < error["after"] < error["before"] for error in layers.values())
    code, err, out = run(arguments)
    assert code is None and "relative error" in out, err
    both = ["calibrate", str(small.path), "--original", str(model.path), *where, "--for", "drrqr"]
    check_refusal(*run([*both, "-o", str(tmp_path / "x")]), "leave out --for")


def test_an_interrupted_refit_is_not_mixed_with_another(
    checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    model = st.open(checkpoint("delta_net"))
    small = cut(model, tmp_path / "small")
    statistics = st.calibrate(small, text, original=model, **SETTINGS)

    def die(progress: Progress) -> None:
        if progress.done > progress.total / 2:  # of three shards one is complete
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        st.refit(small, statistics, out=tmp_path / "out", progress=die)
    assert (tmp_path / "out.partial").is_dir() and not (tmp_path / "out").exists()
    with pytest.raises(st.StatetrimError, match="'damping' differs"):
        st.refit(small, statistics, out=tmp_path / "out", damping=1e-3)
    st.refit(small, statistics, out=tmp_path / "out")
    with pytest.raises(st.StatetrimError, match="not overwritten"):
        st.refit(small, statistics, out=tmp_path / "out", damping=1e-3)


def test_a_layer_that_never_calls_its_output_projection_is_refused(
    checkpoint: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse_output_projections(monkeypatch)
    model = st.open(checkpoint("delta_net"))
    with pytest.raises(st.StatetrimError, match=r"layer 0 .* never calls its output projection"):
        st.calibrate(cut(model, tmp_path / "small"), text, original=model, **SETTINGS)
