"""Widths by layer: the allocation is optimal, and impossible ones are refused."""

from itertools import product

import pytest
import torch

import statetrim as st
from statetrim.artifacts.sensitivity import LayerCut, Samples, Sensitivity
from statetrim.geometry import Axis
from statetrim.selection.allocate import allocate, cheapest_allocation

SHAPES = [(k, v) for k in (16, 8, 4) for v in (16, 8, 4)]


def random_costs(layers: int, seed: int) -> dict[int, dict[tuple[int, int], float]]:
    generator = torch.Generator().manual_seed(seed)
    return {
        layer: {shape: float(torch.rand(1, generator=generator)) for shape in SHAPES}
        for layer in range(layers)
    }


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.5, 0.3, 0.25])
def test_no_other_choice_costs_less(seed: int, share: float) -> None:
    costs = random_costs(4, seed)
    allocation = cheapest_allocation(costs, share, 16 * 16)
    budget = share * 4 * 16 * 16
    all_costs = (
        sum(costs[layer][shape] for layer, shape in enumerate(choice))
        for choice in product(SHAPES, repeat=4)
        if sum(k * v for k, v in choice) <= budget
    )
    assert allocation.cost == pytest.approx(min(all_costs))
    assert allocation.share <= share
    assert allocation.share * 4 * 256 == sum(k * v for k, v in allocation.shapes.values())


def cut(layer: int, axis: Axis, keep: int, nll: float, recall: float) -> LayerCut:
    samples = Samples([1 + nll] * 4, [nll] * 4, {16: [recall] * 4})
    return LayerCut(layer, axis, keep, samples, {"text": 0.1, "random": 0.1, "recall": 0.1})


def measured() -> Sensitivity:
    """A sensitivity in which only layer 0 affects recall, and layers 1 and 2 a little NLL."""
    cuts = [
        cut(layer, axis, keep, 0.01 * layer, 0.2 if layer == 0 else 1.0)
        for layer in range(3)
        for axis in ("key", "value")
        for keep in (8, 4)
    ]
    original = Samples([1.0] * 4, [0.0] * 4, {16: [1.0] * 4})
    return Sensitivity(original, cuts, {"key": 16, "value": 16})


def test_the_layer_that_recalls_stays_whole() -> None:
    allocation = allocate(measured(), 0.5)
    assert allocation.shapes[0] == (16, 16)
    assert str(allocation).startswith("0=16x16,1=")
    squares = allocate(measured(), 0.5, squares=True)
    assert squares.shapes == {0: (16, 16), 1: (8, 8), 2: (8, 8)}
    assert squares.cost == pytest.approx(2 * 0.01 + 2 * 0.02)


def test_what_cannot_be_allocated() -> None:
    with pytest.raises(st.StatetrimError, match="take more than 1% of the state"):
        allocate(measured(), 0.01)
    with pytest.raises(st.StatetrimError, match="between 0 and 1"):
        allocate(measured(), 1.5)
    keys = [layer_cut for layer_cut in measured().cuts if layer_cut.axis == "key"]
    keys_only = Sensitivity(measured().original, keys, {"key": 16, "value": 16})
    assert all(v == 16 for _, v in allocate(keys_only, 0.5).shapes.values())
    with pytest.raises(st.StatetrimError, match="was not measured on both axes"):
        allocate(keys_only, 0.5, squares=True)
