"""Widths by layer: the allocation is optimal, also in the pages that the plugin would store, and
impossible ones are refused."""

import random
from collections.abc import Callable, Sequence
from itertools import product
from math import ceil

import pytest

import statetrim as st
from helpers.plugin_pages import HEADS, Size, memory, page_size, pages
from statetrim.artifacts.samples import Samples
from statetrim.artifacts.sensitivity import LayerCut, Sensitivity
from statetrim.cut.shape import Axis
from statetrim.selection.allocate import (
    allocate,
    allocate_in_pages,
    cheapest_allocation,
    cheapest_in_pages,
    measured_costs,
)
from statetrim.serving.capacity.parts import Paging

SHAPES = [(k, v) for k in (16, 8, 4) for v in (16, 8, 4)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.5, 0.3, 0.25])
def test_no_other_choice_costs_less(seed: int, share: float) -> None:
    draw = random.Random(seed)
    costs = {layer: {shape: draw.random() for shape in SHAPES} for layer in range(4)}
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


def test_only_shapes_that_the_kernels_take_and_whole_layers_are_allocated() -> None:
    paging, draw = Paging(4, 4, 1, page_size(4, 6)), random.Random(0)
    for _ in range(4):
        sensitivity = sensitivity_of(4, lambda _, keep: draw.random() / keep, lambda _: 1.0)
        allocation = allocate_in_pages(sensitivity, 0.5, paging, lambda s: s[0] == s[1] < 16)
        assert {*allocation.shapes.values()} <= {(16, 16), (8, 8), (4, 4)}
        nll, recall = allocation.losses(sensitivity)
        assert nll == pytest.approx(allocation.cost) and recall == 0


def test_losses_are_told_apart() -> None:
    nll, recall = allocate(measured(), 0.5).losses(measured())
    assert nll > 0 == recall
    everywhere = sensitivity_of(3, lambda *_: 0.0, lambda _: 0.75)
    lost = pytest.approx(3 * 0.25)  # one axis of each
    assert allocate(everywhere, 0.25).losses(everywhere) == (0, lost)


WIDTH = 128
Costs = dict[int, dict[tuple[int, int], float]]


def page_costs(generator: random.Random, layers: int, shapes: Sequence[tuple[int, int]]) -> Costs:
    """Costs that fall with the width, that are noisy, or half of which are 0."""
    kind = generator.choice(["monotonous", "noisy", "zeros"])
    costs: Costs = {layer: {} for layer in range(layers)}
    for layer, shape in product(range(layers), shapes):
        cost = generator.random() ** 4 * (2 - sum(shape) / WIDTH)
        if kind == "noisy":
            cost = max(0.0, 0.2 * cost + generator.gauss(0, 0.02))
        if kind == "zeros" and generator.random() < 0.5:
            cost = 0.0
        costs[layer][shape] = 0.0 if shape == (WIDTH, WIDTH) else cost
    return costs


def one_shape(
    layers: int, share: float, heads: tuple[int, int], group: int, size: Size, unit: float
) -> float:
    """Bytes of all layers with `share` of one axis and all of the other, whichever takes more."""
    cut = share * WIDTH
    page = max(size(pages.Heads(*heads, *shape)) for shape in ((WIDTH, cut), (cut, WIDTH)))
    return group * ceil(layers / group) * unit * ceil(page / unit - 1e-12)


def check_instance(seed: int) -> None:
    generator = random.Random(seed)
    heads = generator.choice(HEADS)
    group, unit = generator.choice([1, 1, 2]), generator.choice([1.0, 1.0, 8192.0])
    share = generator.choice([0.5, 0.25, 0.3, 0.6])
    size = generator.choice([page_size(1, 0), page_size(4, 6), page_size(2, 6), page_size(4, 12)])
    sides = generator.choice([(128, 64), (128, 64, 32), (128, 64, 16), (128, 64, 32, 16)])
    shapes = list(product(sides, repeat=2))
    if generator.random() < 0.6:
        shapes = [(side, side) for side in sides]
    layers = generator.choice([2, 3] if len(shapes) > 4 else [3, 4, 5])
    costs = page_costs(generator, layers, shapes)
    budget = one_shape(layers, share, heads, group, size, unit) * (1 + 1e-9)
    fitting = [
        sum(costs[layer][shape] for layer, shape in enumerate(choice))
        for choice in product(shapes, repeat=layers)
        if memory(choice, heads, group, size, unit) <= budget
    ]
    paging = Paging(*heads, group, size, unit)
    if not fitting:
        with pytest.raises(st.StatetrimError, match="take more than"):
            cheapest_in_pages(costs, share, paging, (WIDTH, WIDTH))
        return
    allocation = cheapest_in_pages(costs, share, paging, (WIDTH, WIDTH))
    taken = memory(tuple(allocation.shapes.values()), heads, group, size, unit)
    assert taken <= budget, (seed, str(allocation), taken / budget)
    assert allocation.cost == pytest.approx(min(fitting), abs=1e-12), (seed, str(allocation))


def test_no_assignment_that_fits_costs_less_and_none_takes_more() -> None:
    for seed in range(100):
        check_instance(seed)


@pytest.mark.slow
def test_ten_thousand_assignments() -> None:
    for seed in range(10_000):
        check_instance(seed)


def test_many_layers_and_widths_are_allocated_in_seconds() -> None:
    sides = (128, 96, 64, 32)
    costs = page_costs(random.Random(0), 48, list(product(sides, repeat=2)))
    paging = Paging(16, 48, 16, page_size(4, 6), 65536.0)
    allocation = cheapest_in_pages(costs, 0.5, paging, (128, 128))
    shapes = allocation.shapes.values()
    layout = paging.layout(set(shapes))
    memory = paging.stored(sum(layout.parts[shape] for shape in shapes), layout.page)
    assert memory <= paging.memory_of_share(48, 0.5, (128, 128))
