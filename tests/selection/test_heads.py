"""Selection of heads against least squares on the tokens, and the refit against a second pass."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.refusal import run
from helpers.sums import layer_errors
from statetrim.artifacts.plan import AxisPlan
from statetrim.artifacts.statistics import LayerStatistics
from statetrim.cut.geometry import resolve_heads
from statetrim.cut.shape import CHANNEL_AXES
from statetrim.methods.contract import HeadEvidence
from statetrim.methods.head_energy import select as by_energy
from statetrim.methods.head_refit import select as by_refit


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> st.Checkpoint:
    """Six value heads of three key heads."""
    heads = {"linear_num_key_heads": 3, "linear_num_value_heads": 6}
    return st.open(tiny.build("qwen3_5_text", tmp_path_factory.mktemp("model") / "m", **heads))


@pytest.fixture(scope="module")
def statistics(model: st.Checkpoint, text: Path) -> st.Statistics:
    return st.calibrate(model, text, methods=["head_refit"], tokens=2048, length=64, progress=False)


def evidence(
    groups: int, heads: int, width: int, hidden: int = 5, seed: int = 0
) -> tuple[HeadEvidence, torch.Tensor, torch.Tensor]:
    """Correlated read-outs of 64 tokens, float64."""
    generator = torch.Generator().manual_seed(seed)
    n = groups * heads * width
    mixing = torch.randn(n, n, generator=generator, dtype=torch.float64)
    values = torch.randn(64, n, generator=generator, dtype=torch.float64) @ mixing
    weight = torch.randn(hidden, n, generator=generator, dtype=torch.float64)
    sums = LayerStatistics(64, {"readout_moment": values.mT @ values})
    head_evidence = HeadEvidence(
        weight.mT.reshape(groups, heads, width, hidden), generator=generator, statistics=sums
    )
    return head_evidence, values, weight


def least_squares_error(values: torch.Tensor, weight: torch.Tensor, columns: list[int]) -> float:
    """Residual sum of squares of the best fit to the output from `columns`."""
    target = values @ weight.mT
    return float(torch.linalg.lstsq(values[:, columns], target, driver="gelsd").residuals.sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("groups", "heads", "keep"), [(1, 4, 3), (1, 5, 2), (3, 2, 1), (2, 3, 1)])
def test_heads_go_in_the_order_of_what_least_squares_misses_without_them(
    groups: int, heads: int, keep: int, seed: int
) -> None:
    width = 2
    head_evidence, values, weight = evidence(groups, heads, width, seed=seed)
    remaining = list(range(groups * heads))
    while len(remaining) > groups * keep:
        may_go = [h for h in remaining if sum(o // heads == h // heads for o in remaining) > keep]
        errors = {
            gone: least_squares_error(
                values, weight, [h * width + c for h in remaining if h != gone for c in (0, 1)]
            )
            for gone in may_go
        }
        remaining.remove(min(errors, key=lambda gone: errors[gone]))
    kept = by_refit(head_evidence, keep) + heads * torch.arange(groups).unsqueeze(1)
    assert kept.flatten().tolist() == remaining


def test_energy_is_the_square_of_what_a_head_puts_out() -> None:
    head_evidence, values, weight = evidence(2, 3, 2)
    output = torch.einsum("thc,ohc->tho", values.view(64, 6, 2), weight.view(5, 6, 2))
    energy = output.square().sum((0, 2)).reshape(2, 3)
    assert torch.equal(by_energy(head_evidence, 2), energy.topk(2).indices.sort().values)


@pytest.mark.parametrize("keep", [2, 3, 4])
def test_the_refit_needs_no_second_pass(
    keep: int, model: st.Checkpoint, text: Path, statistics: st.Statistics, tmp_path: Path
) -> None:
    """Statistics of the original give the weights that statistics of the cut give."""
    plan = st.select(model, to=f"{keep}heads", statistics=statistics, progress=False)
    small = st.prune(model, plan, tmp_path / "small", progress=False)
    once = st.refit(small, statistics, out=tmp_path / "once", progress=False)
    again = st.calibrate(small, text, original=model, tokens=2048, length=64, progress=False)
    twice = st.refit(small, again, out=tmp_path / "twice", progress=False)
    for name in (n for n in small.tensors if n.endswith("linear_attn.out_proj.weight")):
        torch.testing.assert_close(once.tensor(name), twice.tensor(name), rtol=0, atol=1e-4)
        assert not torch.equal(once.tensor(name), small.tensor(name))
    before, after = (layer_errors(m, again) for m in (small, once))
    assert all(after[layer] < before[layer] for layer in before)


def test_a_model_that_was_trained_since_is_not_refitted_from_the_original(
    model: st.Checkpoint, statistics: st.Statistics, tmp_path: Path
) -> None:
    plan = st.select(model, to="50%heads", statistics=statistics, progress=False)
    assert (plan.to, plan.axes["head"].method) == ("3heads", "head_refit")
    small = st.prune(model, plan, tmp_path / "small", progress=False)
    (small.path / "statetrim" / "recover.json").write_text("{}")
    with pytest.raises(st.StatetrimError, match="trained after its heads went"):
        st.refit(small, statistics, out=tmp_path / "out", progress=False)


@pytest.mark.parametrize("heads", [2, 3])
def test_channels_are_chosen_of_the_heads_that_stay(
    heads: int, model: st.Checkpoint, text: Path, tmp_path: Path
) -> None:
    """Methods that look at one head at a time choose for each as they do without a cut of heads."""
    options: dict[str, Any] = {"tokens": 1024, "length": 64, "progress": False}
    methods = ["head_refit", "drrqr", "readout_greedy"]
    statistics = st.calibrate(model, text, methods=methods, **options)
    plans = {
        to: st.select(model, "head_refit,drrqr", to, statistics=statistics)
        for to in (f"{heads}heads", "6x4", f"{heads}heads:6x4")
    }
    of_heads, of_channels, both = plans.values()
    assert [*both.axes] == ["head", "key", "value"] and both.to == f"{heads}heads:6x4"
    assert len(both.axes["key"].notes[0]["swaps"]) == len(both.axes["key"].kept[0])
    for layer, stay in both.axes["head"].kept.items():
        assert torch.equal(stay, of_heads.axes["head"].kept[layer])
        keys, values = (of_channels.axes[axis].kept[layer] for axis in CHANNEL_AXES)
        assert torch.equal(both.axes["key"].kept[layer], keys[stay[:, 0] // 2])
        assert torch.equal(both.axes["value"].kept[layer], values[stay.flatten()])
    both.save(tmp_path / "plan.json")
    assert st.Plan.load(tmp_path / "plan.json").digest == both.digest
    small = st.prune(model, both, tmp_path / "small", progress=False)
    assert st.inspect(model, to=both.to).parameters_after == small.parameters
    with pytest.raises(st.StatetrimError, match="made with another model"):
        st.refit(small, statistics, out=tmp_path / "once", progress=False)
    sums = st.calibrate(small, text, original=model, **options)
    fitted = st.refit(small, sums, out=tmp_path / "fitted", progress=False)
    before, after = (layer_errors(m, sums) for m in (small, fitted))
    assert all(after[layer] < before[layer] for layer in before)


@pytest.mark.parametrize(("heads", "sentence"), load_cases("plans-of-heads"))
def test_a_plan_of_other_heads_is_refused(
    heads: list[list[int]], sentence: str, model: st.Checkpoint
) -> None:
    plan = st.select(model, to="4heads", method="rand", progress=False)
    bad = AxisPlan(dict.fromkeys(plan.layers, torch.tensor(heads)), "rand")
    with pytest.raises(st.StatetrimError, match=sentence):
        st.prepare(model, replace(plan, axes={"head": bad}))


@pytest.mark.parametrize(("keep_heads", "sentence"), load_cases("head-counts"))
def test_bad_counts_are_refused_in_one_sentence(
    keep_heads: Any, sentence: str, model: st.Checkpoint
) -> None:
    with pytest.raises(st.StatetrimError, match=sentence):
        st.select(model, to=f"{keep_heads}heads", method="rand")


def test_heads_need_a_method_that_chooses_them_and_statistics(
    model: st.Checkpoint, statistics: st.Statistics
) -> None:
    with pytest.raises(st.StatetrimError, match="l1 does not choose heads; choose one of head_"):
        st.select(model, to="3heads", method="l1")
    with pytest.raises(st.StatetrimError, match="needs readout_moment"):
        st.select(model, to="3heads")
    sums = {name: 0 * value for name, value in statistics.layers[0].sums.items()}
    zeros = dict.fromkeys(statistics.layers, LayerStatistics(9, sums))
    with pytest.raises(st.StatetrimError, match="nothing but zeros"):
        st.select(model, to="3heads", statistics=replace(statistics, layers=zeros, generated={}))


def test_what_devices_can_share_is_said(model: st.Checkpoint, tmp_path: Path) -> None:
    geometry = model.geometry
    assert geometry.tensor_parallel == [1, 3]
    assert resolve_heads(Fraction(6, 10), geometry).tensor_parallel == [1, 2]
    plan = tmp_path / "plan.json"
    command = ["select", str(model.path), "--to", "4heads", "--method", "rand"]
    code, _, printed = run([*command, "-o", str(plan), "--json"])
    assert code is None and json.loads(printed)["tensor_parallel"] == [1, 2]
