"""Widths by layer in vLLM's pages against all assignments, each as the plugin would store it."""

import random
from collections.abc import Sequence
from itertools import product
from math import ceil

import pytest

import statetrim as st
from helpers.plugin_pages import HEADS, Size, memory, page_size, pages
from statetrim.selection.allocate import cheapest_in_pages
from statetrim.serving.capacity.parts import Paging

WIDTH = 128
Costs = dict[int, dict[tuple[int, int], float]]


def random_costs(generator: random.Random, layers: int, shapes: Sequence[tuple[int, int]]) -> Costs:
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
    costs = random_costs(generator, layers, shapes)
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
    costs = random_costs(random.Random(0), 48, list(product(sides, repeat=2)))
    paging = Paging(16, 48, 16, page_size(4, 6), 65536.0)
    allocation = cheapest_in_pages(costs, 0.5, paging, (128, 128))
    assert paging.memory(tuple(allocation.shapes.values())) <= paging.memory_of_share(
        48, 0.5, (128, 128)
    )
