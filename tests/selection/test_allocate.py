"""Widths by layer: the allocation is optimal, and impossible ones are refused."""

from collections.abc import Callable
from itertools import product

import pytest
import torch

import statetrim as st
from helpers.plugin_pages import page_size
from statetrim.artifacts.samples import Samples
from statetrim.artifacts.sensitivity import LayerCut, Sensitivity
from statetrim.cut.shape import Axis
from statetrim.selection.allocate import (
    allocate,
    allocate_in_pages,
    cheapest_allocation,
    measured_costs,
)
from statetrim.serving.capacity.parts import Paging

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


def sensitivity_of(
    layers: int, nll: Callable[[int, int], float], recall: Callable[[int], float]
) -> Sensitivity:
    """Both axes of every layer cut to 8 and 4 of 16 channels."""
    cuts = []
    axes: tuple[Axis, Axis] = ("key", "value")
    for layer, axis, keep in product(range(layers), axes, (8, 4)):
        added = nll(layer, keep)
        samples = Samples([1 + added] * 4, [added] * 4, {16: [recall(layer)] * 4})
        cuts.append(LayerCut(layer, axis, keep, samples))
    original = Samples([1.0] * 4, [0.0] * 4, {16: [1.0] * 4})
    return Sensitivity(original, cuts, {"key": 16, "value": 16})


def measured() -> Sensitivity:
    """A sensitivity in which only layer 0 affects recall, and layers 1 and 2 a little NLL."""
    return sensitivity_of(3, lambda layer, _: 0.01 * layer, lambda layer: 1.0 if layer else 0.2)


def test_the_layer_that_recalls_stays_whole() -> None:
    allocation = allocate(measured(), 0.5)
    assert allocation.shapes[0] == (16, 16)
    assert str(allocation).startswith("0=16x16,1=")
    costs = measured_costs(measured())
    assert set(costs[1]) == set(SHAPES) and costs[1][8, 8] == pytest.approx(2 * 0.01)


def test_what_cannot_be_allocated() -> None:
    with pytest.raises(st.StatetrimError, match="take more than 1% of the state"):
        allocate(measured(), 0.01)
    with pytest.raises(st.StatetrimError, match="between 0 and 1"):
        allocate(measured(), 1.5)
    keys = [layer_cut for layer_cut in measured().cuts if layer_cut.axis == "key"]
    keys_only = Sensitivity(measured().original, keys, {"key": 16, "value": 16})
    assert all(v == 16 for _, v in allocate(keys_only, 0.5).shapes.values())


def random_sensitivity(layers: int, seed: int) -> Sensitivity:
    generator = torch.Generator().manual_seed(seed)
    return sensitivity_of(
        layers, lambda _, keep: float(torch.rand(1, generator=generator)) / keep, lambda _: 1.0
    )


def test_only_shapes_that_the_kernels_take_and_whole_layers_are_allocated() -> None:
    def is_square(shape: tuple[int, int]) -> bool:
        return shape[0] == shape[1] < 16

    paging = Paging(4, 4, 1, page_size(4, 6))
    for seed in range(4):
        sensitivity = random_sensitivity(4, seed)
        allocation = allocate_in_pages(sensitivity, 0.5, paging, is_square)
        assert {*allocation.shapes.values()} <= {(16, 16), (8, 8), (4, 4)}
        nll, recall = allocation.losses(sensitivity)
        assert nll == pytest.approx(allocation.cost) and recall == 0


def test_losses_are_told_apart() -> None:
    nll, recall = allocate(measured(), 0.5).losses(measured())
    assert nll > 0 == recall
    everywhere = sensitivity_of(3, lambda *_: 0.0, lambda _: 0.75)
    assert allocate(everywhere, 0.25).losses(everywhere) == (
        0,
        pytest.approx(3 * 0.25),
    )  # one axis of each
