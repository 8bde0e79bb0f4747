"""One contract, every method."""

from typing import Any

import pytest
import torch
from torch import Tensor

import statetrim as st
from statetrim.method import as_method, top
from statetrim.methods import find_method, method_names

HEADS, CHANNELS, HIDDEN, KEEP = 3, 16, 10, 5


def evidence(permutation: Tensor | None = None, copies: int = 1) -> st.Evidence:
    generator = torch.Generator().manual_seed(7)
    shape = (HEADS, CHANNELS, copies, HIDDEN)
    weights = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    if permutation is not None:
        weights = [weight[:, permutation] for weight in weights]
    return st.Evidence(*weights, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", method_names())
def test_shape_order_range_and_determinism(name: str) -> None:
    select = find_method(name).select
    kept = select(evidence(), KEEP)
    assert kept.dtype == torch.int64 and tuple(kept.shape) == (HEADS, KEEP)
    assert (kept.diff(dim=1) > 0).all() and kept.min() >= 0 and kept.max() < CHANNELS
    assert torch.equal(kept, select(evidence(), KEEP))


@pytest.mark.parametrize("name", [name for name in method_names() if name != "rand"])
def test_permuting_the_channels_permutes_the_choice(name: str) -> None:
    permutation = torch.randperm(CHANNELS, generator=torch.Generator().manual_seed(2))
    select = find_method(name).select
    kept, permuted = select(evidence(), KEEP), select(evidence(permutation), KEEP)
    assert torch.equal(permutation[permuted].sort(dim=1).values, kept)


@pytest.mark.parametrize("name", method_names())
def test_several_projections_per_key_head_are_judged_together(name: str) -> None:
    assert tuple(find_method(name).select(evidence(copies=3), KEEP).shape) == (HEADS, KEEP)


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
