"""One contract, every method."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import statetrim as st
from statetrim.method import as_method, top
from statetrim.methods import find_method, method_names
from statetrim.statistics import LayerStatistics

HEADS, CHANNELS, HIDDEN, KEEP = 3, 16, 10, 5
SCORED = [name for name in method_names() if name != "rand"]


def evidence(permutation: Tensor | None = None, copies: int = 1) -> st.Evidence:
    """Random weights, gradients and activations, of which the Grams are made."""
    generator = torch.Generator().manual_seed(7)
    order = torch.arange(CHANNELS) if permutation is None else permutation

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def gram() -> Tensor:
        rows = random(HEADS, 200, CHANNELS)[..., order] * torch.linspace(0.1, 2, CHANNELS)[order]
        return rows.mT @ rows

    def rows() -> Tensor:
        return random(HEADS, CHANNELS, copies, HIDDEN)[:, order]

    statistics = LayerStatistics(
        tokens=200,
        input_square=random(HIDDEN).square(),
        query_gram=gram(),
        key_gram=gram(),
        query_unit_gram=gram(),
        key_unit_gram=gram(),
        query_gradient=rows(),
        key_gradient=rows(),
    )
    return st.Evidence(rows(), rows(), torch.Generator().manual_seed(1), statistics)


@pytest.mark.parametrize("name", method_names())
def test_shape_order_range_and_determinism(name: str) -> None:
    select = find_method(name).select
    kept = select(evidence(), KEEP)
    assert kept.dtype == torch.int64 and tuple(kept.shape) == (HEADS, KEEP)
    assert (kept.diff(dim=1) > 0).all() and kept.min() >= 0 and kept.max() < CHANNELS
    assert torch.equal(kept, select(evidence(), KEEP))


@pytest.mark.parametrize("name", SCORED)
def test_permuting_the_channels_permutes_the_choice(name: str) -> None:
    permutation = torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(2))
    select = find_method(name).select
    kept, permuted = select(evidence(), KEEP), select(evidence(permutation), KEEP)
    assert torch.equal(permutation[permuted].sort(dim=1).values, kept)


@pytest.mark.parametrize("name", method_names())
def test_several_projections_per_key_head_are_judged_together(name: str) -> None:
    assert tuple(find_method(name).select(evidence(copies=3), KEEP).shape) == (HEADS, KEEP)


@pytest.mark.parametrize("name", SCORED)
def test_every_method_can_judge_by_queries_or_keys_alone(name: str) -> None:
    """Blind to the other side: random changes there do not matter, changes on its own side do."""
    select, given = find_method(name).select, evidence()
    for side, other in (("query", "key"), ("key", "query")):
        alone = select(given, KEEP, score=side[0])
        assert torch.equal(alone, select(shuffled(given, other), KEEP, score=side[0]))
        assert not torch.equal(alone, select(shuffled(given, side), KEEP, score=side[0]))
    assert not torch.equal(select(given, KEEP), select(shuffled(given, "key"), KEEP))


def shuffled(given: st.Evidence, side: str) -> st.Evidence:
    """The same evidence with one side's channels reversed."""
    heard = given.statistics
    assert heard is not None
    grams = {
        name: getattr(heard, name).flip(1, 2) for name in (f"{side}_gram", f"{side}_unit_gram")
    }
    gradient = {f"{side}_gradient": getattr(heard, f"{side}_gradient").flip(1)}
    weight = {f"{side}_weight": getattr(given, f"{side}_weight").flip(1)}
    return replace(given, statistics=replace(heard, **grams, **gradient), **weight)


def by_hand(given: st.Evidence, name: str, head: int, channel: int) -> float:
    """Each formula of the paper's table, in loops."""
    s = given.statistics
    assert s is not None
    total = 0.0
    if name in ("energy", "product"):
        q = float(s.query_unit_gram[head, channel, channel])  # type: ignore[index]
        k = float(s.key_unit_gram[head, channel, channel])  # type: ignore[index]
        return q + k if name == "energy" else q * k
    for weight, gradient in (
        (given.query_weight, s.query_gradient),
        (given.key_weight, s.key_gradient),
    ):
        for feature in range(HIDDEN):
            w = float(weight[head, channel, 0, feature])
            if name == "s_wanda":
                total += abs(w) * float(s.input_square[feature]) ** 0.5  # type: ignore[index]
            else:
                total += abs(w * float(gradient[head, channel, 0, feature]))  # type: ignore[index]
    return total


@pytest.mark.parametrize("name", ["s_wanda", "grad", "energy", "product"])
def test_scores_are_the_formulas(name: str) -> None:
    given = evidence()
    kept = find_method(name).select(given, KEEP)
    for head in range(HEADS):
        scores = {channel: by_hand(given, name, head, channel) for channel in range(CHANNELS)}
        best = sorted(scores, key=lambda channel: scores[channel], reverse=True)[:KEEP]
        assert kept[head].tolist() == sorted(best)


def test_drrqr_is_rrqr_of_the_stacked_rows_and_reports_its_work() -> None:
    from scipy.linalg import qr

    given = evidence()
    kept = find_method("drrqr").select(given, KEEP)
    assert given.statistics is not None
    grams = given.statistics.query_gram + given.statistics.key_gram  # type: ignore[operator]
    for head in range(HEADS):
        factor = torch.linalg.cholesky(grams[head]).mT.numpy()
        pivots = qr(factor, pivoting=True, mode="r")[1][:KEEP]
        if given.notes["swaps"][head] == 0:
            assert kept[head].tolist() == sorted(pivots.tolist())
    assert given.notes["converged"] == [True] * HEADS and given.notes["rank"] == [KEEP] * HEADS
    assert 0 in given.notes["swaps"]
    with pytest.raises(ValueError, match="tolerance"):
        find_method("drrqr").select(given, KEEP, tolerance=1.0)


def test_what_a_method_did_not_declare_it_may_not_use() -> None:
    bare = replace(evidence(), statistics=LayerStatistics(tokens=1))
    with pytest.raises(st.StatetrimError, match="without declaring"):
        find_method("energy").select(bare, KEEP)


@pytest.mark.parametrize("score", ["qk", "q", "k"])
def test_l1_is_the_sum_of_magnitudes(score: str) -> None:
    given = evidence()
    parts = {"q": given.query_weight, "k": given.key_weight}
    kept = find_method("l1").select(given, KEEP, score=score)
    for head in range(HEADS):
        sums = {
            channel: sum(float(parts[p][head, channel].abs().sum()) for p in score)
            for channel in range(CHANNELS)
        }
        best = sorted(sums, key=lambda channel: sums[channel], reverse=True)[:KEEP]
        assert kept[head].tolist() == sorted(best)


def test_rand_draws_each_channel_equally_often_and_heads_differ() -> None:
    given = evidence()
    counts = torch.zeros(CHANNELS)
    for _ in range(600):
        kept = find_method("rand").select(given, KEEP)
        counts += torch.bincount(kept.flatten(), minlength=CHANNELS)
    expected = 600 * HEADS * KEEP / CHANNELS
    assert (counts - expected).abs().max() < 5 * expected**0.5


def test_ties_go_to_the_lowest_channel() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0 + 1e-14, 3.0]], dtype=torch.float64)
    assert top(scores, 2).tolist() == [[1, 2]]


def test_unknown_names_and_options_are_refused(checkpoint: Any) -> None:
    with pytest.raises(st.StatetrimError, match=r"no method 'l3'.*l1.*rand"):
        find_method("l3")
    with pytest.raises(st.StatetrimError, match=r"no option 'skore'.*score"):
        st.select(st.open(checkpoint("qwen3_5_text")), "l1", 4, skore="q")
    with pytest.raises(st.StatetrimError, match="score must be"):
        st.select(st.open(checkpoint("qwen3_5_text")), "l1", 4, score="v")


def test_a_method_that_returns_nonsense_is_refused(checkpoint: Any) -> None:
    def lazy(evidence: st.Evidence, keep: int) -> Tensor:
        return torch.zeros(2, keep, dtype=torch.int64)

    with pytest.raises(st.StatetrimError, match="'lazy' must return"):
        st.select(st.open(checkpoint("qwen3_5_text")), lazy, 4)


def test_options_come_from_the_signature() -> None:
    def select(evidence: st.Evidence, keep: int, *, tolerance: float = 1.5) -> Tensor:
        raise NotImplementedError

    assert as_method(select, "mine").options == {"tolerance": 1.5}


def test_layers_and_seeds_draw_differently_and_repeatably(checkpoint: Any) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    first, again, other = (st.select(model, "rand", 6, seed=s) for s in (0, 0, 1))
    layers = list(first.kept)
    assert all(torch.equal(first.kept[i], again.kept[i]) for i in layers)
    assert not torch.equal(first.kept[layers[0]], first.kept[layers[1]])
    assert not torch.equal(first.kept[layers[0]], other.kept[layers[0]])
