"""What every method must do, and what each one computes."""

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers.tiny import Load
from statetrim.artifacts.statistics import LayerStatistics
from statetrim.cut.shape import CHANNEL_AXES, Axis
from statetrim.methods import find_method, method_names
from statetrim.methods.contract import top

HEADS, CHANNELS, HIDDEN, KEEP = 3, 16, 10, 5
SCORED = [name for name in method_names("key") if "score" in find_method(name).options]
EVERY: list[tuple[Axis, str]] = [
    (axis, name) for axis in CHANNEL_AXES for name in method_names(axis)
]


def evidence(
    permutation: Tensor | None = None, copies: int = 1, axis: Axis = "key"
) -> st.Evidence | st.ValueEvidence:
    """Random weights and gradients, and Gram matrices of random activations."""
    generator = torch.Generator().manual_seed(7)
    order = torch.arange(CHANNELS) if permutation is None else permutation

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def gram() -> Tensor:
        rows = random(HEADS, 200, CHANNELS)[..., order] * torch.linspace(0.1, 2, CHANNELS)[order]
        return rows.mT @ rows

    def rows() -> Tensor:
        return random(HEADS, CHANNELS, copies, HIDDEN)[:, order]

    sums = {
        "input_square": random(HIDDEN).square(),
        "query_gram": gram(),
        "key_gram": gram(),
        "query_unit_gram": gram(),
        "key_unit_gram": gram(),
        "query_gradient": rows(),
        "key_gradient": rows(),
        "readout_gram": gram(),
        "state_read": random(HEADS, CHANNELS).square()[:, order],
    }
    kind = st.Evidence if axis == "key" else st.ValueEvidence
    generator, statistics = torch.Generator().manual_seed(1), LayerStatistics(200, sums)
    return kind(rows(), rows(), generator=generator, statistics=statistics)


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(("axis", "name"), EVERY)
def test_shape_order_range_and_determinism(axis: Axis, name: str, copies: int) -> None:
    """Also where a head has several projections, which are judged together."""
    select = find_method(name).select
    kept = select(evidence(copies=copies, axis=axis), KEEP)
    assert kept.dtype == torch.int64 and tuple(kept.shape) == (HEADS, KEEP)
    assert (kept.diff(dim=1) > 0).all() and kept.min() >= 0 and kept.max() < CHANNELS
    assert torch.equal(kept, select(evidence(copies=copies, axis=axis), KEEP))


@pytest.mark.parametrize(("axis", "name"), [pair for pair in EVERY if pair[1] != "rand"])
def test_permuting_the_channels_permutes_the_choice(axis: Axis, name: str) -> None:
    permutation = torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(2))
    select = find_method(name).select
    kept = select(evidence(axis=axis), KEEP)
    permuted = select(evidence(permutation, axis=axis), KEEP)
    assert torch.equal(permutation[permuted].sort(dim=1).values, kept)


def output_error(layer_evidence: st.ValueEvidence, head: int, kept: tuple[int, ...]) -> float:
    """Squared error of the head's output after least squares on the kept channels."""
    gram = layer_evidence.statistic("readout_gram")[head].numpy()
    weight = layer_evidence.output_weight[head, :, 0].numpy()  # [channels, hidden]
    values, vectors = np.linalg.eigh(gram)
    features = (vectors * np.sqrt(values.clip(0))) @ vectors.T  # any matrix with this Gram
    target, chosen = features @ weight, features[:, list(kept)]
    fitted = np.linalg.lstsq(chosen, target, rcond=None)[0]
    return float(((target - chosen @ fitted) ** 2).sum())


def test_greedy_adds_the_channel_that_lowers_the_output_error_most() -> None:
    layer_evidence = evidence(axis="value")
    assert isinstance(layer_evidence, st.ValueEvidence)
    kept = find_method("readout_greedy").select(layer_evidence, KEEP)
    for head in range(HEADS):
        chosen: tuple[int, ...] = ()
        for _ in range(KEEP):
            candidates = [c for c in range(CHANNELS) if c not in chosen]
            chosen += (
                min(candidates, key=lambda c: output_error(layer_evidence, head, (*chosen, c))),
            )
        assert kept[head].tolist() == sorted(chosen)


def test_greedy_on_channels_that_say_the_same_keeps_one_of_them() -> None:
    """A copy adds nothing, dead channels come last, and nothing divides by zero."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(100, 4, dtype=torch.float64, generator=generator)
    rows = torch.stack([10 * rows[:, 0], 10 * rows[:, 0], rows[:, 1], rows[:, 2]], dim=1)
    rows = torch.cat([rows, torch.zeros(100, 2, dtype=torch.float64)], dim=1)
    weight = torch.randn(1, 6, 1, 5, dtype=torch.float64, generator=generator)
    sums = LayerStatistics(100, {"readout_gram": (rows.mT @ rows).unsqueeze(0)})
    layer_evidence = st.ValueEvidence(weight, weight, generator=torch.Generator(), statistics=sums)
    select = find_method("readout_greedy").select
    assert select(layer_evidence, 3).tolist() == [[0, 2, 3]]
    assert select(layer_evidence, 6).tolist() == [[0, 1, 2, 3, 4, 5]]
    zero = LayerStatistics(1, {"readout_gram": 0 * sums["readout_gram"]})
    zero_evidence = replace(layer_evidence, statistics=zero)
    assert select(zero_evidence, 2).tolist() == [[0, 1]]


def test_methods_that_choose_nothing_that_is_cut_are_refused(checkpoint: Load) -> None:
    model = st.open(checkpoint("qwen3_next"))
    with pytest.raises(st.StatetrimError, match=r"drrqr does not choose value.*readout_greedy"):
        st.select(model, to="100%x4", method="drrqr")
    with pytest.raises(st.StatetrimError, match=r"readout_l1 does not choose key.*drrqr"):
        st.select(model, "readout_l1", "4x100%")


@pytest.mark.parametrize("name", SCORED)
def test_every_method_can_judge_by_queries_or_keys_alone(name: str) -> None:
    """Reversing the channels of the unused side changes nothing; reversing its own side does."""
    select, layer_evidence = find_method(name).select, evidence()
    for side, other in (("query", "key"), ("key", "query")):
        alone = select(layer_evidence, KEEP, score=side[0])
        assert torch.equal(alone, select(shuffled(layer_evidence, other), KEEP, score=side[0]))
        assert not torch.equal(alone, select(shuffled(layer_evidence, side), KEEP, score=side[0]))
    assert not torch.equal(
        select(layer_evidence, KEEP), select(shuffled(layer_evidence, "key"), KEEP)
    )


def shuffled(layer_evidence: st.Evidence, side: str) -> st.Evidence:
    """A copy of the evidence with the channels of one side reversed."""
    sums = layer_evidence.statistics
    assert sums is not None
    grams = {name: sums[name].flip(1, 2) for name in (f"{side}_gram", f"{side}_unit_gram")}
    gradient = {f"{side}_gradient": sums[f"{side}_gradient"].flip(1)}
    reversed_sums = replace(sums, sums={**sums.sums, **grams, **gradient})
    weight = {f"{side}_weight": getattr(layer_evidence, f"{side}_weight").flip(1)}
    return replace(layer_evidence, statistics=reversed_sums, **weight)


def by_hand(layer_evidence: Any, name: str, head: int, channel: int) -> float:
    """A channel's score by the formulas of the paper's table, in loops."""
    s = layer_evidence.statistics
    if name == "readout_energy":
        weights = layer_evidence.output_weight[head, channel, 0]
        return float(s["readout_gram"][head, channel, channel] * sum(w**2 for w in weights))
    if name in ("energy", "product"):
        q, k = (float(s[f"{x}_unit_gram"][head, channel, channel]) for x in ("query", "key"))
        return q + k if name == "energy" else q * k
    total = 0.0
    for side, feature in product(("query", "key"), range(HIDDEN)):
        score = abs(float(getattr(layer_evidence, f"{side}_weight")[head, channel, 0, feature]))
        if name == "s_wanda":
            score *= float(s["input_square"][feature]) ** 0.5
        if name == "grad":
            score *= abs(float(s[f"{side}_gradient"][head, channel, 0, feature]))
        total += score
    return total


@pytest.mark.parametrize("name", ["l1", "s_wanda", "grad", "energy", "product", "readout_energy"])
def test_scores_are_the_formulas(name: str) -> None:
    layer_evidence = evidence(axis="value" if name == "readout_energy" else "key")
    kept = find_method(name).select(layer_evidence, KEEP)
    for head in range(HEADS):
        scores = [by_hand(layer_evidence, name, head, channel) for channel in range(CHANNELS)]
        best = sorted(range(CHANNELS), key=lambda channel: scores[channel], reverse=True)[:KEEP]
        assert kept[head].tolist() == sorted(best)


def test_drrqr_is_rrqr_of_the_stacked_rows_and_reports_its_work() -> None:
    from scipy.linalg import qr

    layer_evidence = evidence()
    kept = find_method("drrqr").select(layer_evidence, KEEP)
    assert layer_evidence.statistics is not None
    grams = layer_evidence.statistic("query_gram") + layer_evidence.statistic("key_gram")
    for head in range(HEADS):
        factor = torch.linalg.cholesky(grams[head]).mT.numpy()
        pivots = qr(factor, pivoting=True, mode="r")[1][:KEEP]
        if layer_evidence.notes["swaps"][head] == 0:
            assert kept[head].tolist() == sorted(pivots.tolist())
    assert (
        layer_evidence.notes["converged"] == [True] * HEADS
        and layer_evidence.notes["rank"] == [KEEP] * HEADS
    )
    assert 0 in layer_evidence.notes["swaps"]
    with pytest.raises(ValueError, match="tolerance"):
        find_method("drrqr").select(layer_evidence, KEEP, tolerance=1.0)


def test_what_a_method_did_not_declare_it_may_not_use() -> None:
    bare = replace(evidence(), statistics=LayerStatistics(tokens=1))
    with pytest.raises(st.StatetrimError, match="without declaring"):
        find_method("energy").select(bare, KEEP)


def test_rand_draws_each_channel_equally_often_and_heads_differ() -> None:
    layer_evidence = evidence()
    counts = torch.zeros(CHANNELS)
    for _ in range(600):
        kept = find_method("rand").select(layer_evidence, KEEP)
        counts += torch.bincount(kept.flatten(), minlength=CHANNELS)
    expected = 600 * HEADS * KEEP / CHANNELS
    assert (counts - expected).abs().max() < 5 * expected**0.5


def test_ties_go_to_the_lowest_channel() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0 + 1e-14, 3.0]], dtype=torch.float64)
    assert top(scores, 2).tolist() == [[1, 2]]
    scores[0, 3] = math.nan
    with pytest.raises(st.StatetrimError, match="scores that are not finite"):
        top(scores, 2)


def test_unknown_names_and_options_are_refused(checkpoint: Any) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    with pytest.raises(st.StatetrimError, match=r"no method 'l3'.*l1.*rand"):
        find_method("l3")
    with pytest.raises(st.StatetrimError, match="no option 'skore'"):
        st.select(model, "l1", "4x100%", skore="q")
    with pytest.raises(st.StatetrimError, match=r"no option 'skore'.*score"):
        st.select(model, "l1", "4x100%", method_options={"skore": "q"})
    with pytest.raises(st.StatetrimError, match="score must be"):
        st.select(model, "l1", "4x100%", method_options={"score": "v"})


def test_a_method_that_returns_nonsense_is_refused(checkpoint: Any) -> None:
    def lazy(evidence: st.Evidence, keep: int) -> Tensor:
        return torch.zeros(2, keep, dtype=torch.int64)

    with pytest.raises(st.StatetrimError, match="'lazy' must return"):
        st.select(st.open(checkpoint("qwen3_5_text")), lazy, "4x100%")


def test_layers_and_seeds_draw_differently_and_repeatably(checkpoint: Any) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    first, again, other = (st.select(model, "rand", "6x100%", seed=s) for s in (0, 0, 1))
    assert first.digest == again.digest != other.digest
    one_layer, another, *_ = first.axes["key"].kept.values()
    assert not torch.equal(one_layer, another)
