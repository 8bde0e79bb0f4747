"""Sensitivity -> widths by layer: the least damage for a share of the state's bytes.

Each layer was cut alone, on each axis alone. What a whole cut costs is taken to be the sum over
layers and axes; under that assumption the choice is exact, a knapsack with one choice per layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd

from ..artifacts.sensitivity import Sensitivity
from ..errors import StatetrimError
from ..geometry import Axis

Shapes = dict[int, tuple[int, int]]
"""Layer -> keys and values per head."""
Costs = Mapping[int, Mapping[tuple[int, int], float]]
"""Layer -> shape -> what it costs to leave the layer with that shape."""


@dataclass(frozen=True)
class Allocation:
    """Shapes by layer, the cost they are predicted to have, and their part of the state's bytes."""

    shapes: Shapes
    cost: float
    share: float

    def __str__(self) -> str:
        """As `--widths` takes it."""
        return ",".join(f"{layer}={k}x{v}" for layer, (k, v) in sorted(self.shapes.items()))


def allocate(sensitivity: Sensitivity, share: float, *, squares: bool = False) -> Allocation:
    """The shapes of at most `share` of the bytes with the least predicted cost.

    A layer keeps, of each axis, all it has or one of the widths that were measured; with `squares`
    it stays whole or becomes half as wide on both. The cost of a cut is its
    increase of NLL in nats plus the share of recall answers it loses.
    """
    costs = measured_costs(sensitivity, squares=squares)
    head_numel = sensitivity.widths["key"] * sensitivity.widths["value"]
    return cheapest_allocation(costs, share, head_numel)


def measured_costs(
    sensitivity: Sensitivity, *, squares: bool = False
) -> dict[int, dict[tuple[int, int], float]]:
    """What each layer's shapes cost, by the cuts of each axis alone."""
    axes: tuple[Axis, ...] = ("key", "value")
    if not set(axes) <= set(sensitivity.widths):
        raise StatetrimError("shapes are allocated on both axes; measure keys and values")
    full_shape = sensitivity.widths["key"], sensitivity.widths["value"]
    measured = {axis: {k for a, k in sensitivity.variants if a == axis} for axis in axes}
    keys, values = (
        {full_width} | measured[a] for full_width, a in zip(full_shape, axes, strict=True)
    )
    choices = list(product(keys, values))
    if squares:
        half = full_shape[0] // 2, full_shape[1] // 2
        if half not in choices:
            raise StatetrimError("half of the channels was not measured on both axes")
        choices = [full_shape, half]
    return {
        layer: {
            shape: sum(_cost(sensitivity, layer, a, n) for a, n in zip(axes, shape, strict=True))
            for shape in choices
        }
        for layer in sensitivity.layers
    }


def cheapest_allocation(costs: Costs, share: float, head_numel: int) -> Allocation:
    """The exact choice: of every number of elements the least cost, layer after layer."""
    if not 0 < share <= 1:
        raise StatetrimError(f"a share of the state must be between 0 and 1, not {share}")
    unit = gcd(*(k * v for shapes in costs.values() for k, v in shapes))
    budget = int(share * head_numel * len(costs) + 1e-9) // unit
    best: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {0: (0.0, ())}
    for shapes in costs.values():
        next_best: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {}
        for used, (cost, chosen) in best.items():
            for shape, added_cost in shapes.items():
                size = used + shape[0] * shape[1] // unit
                option = (cost + added_cost, (*chosen, shape))
                if size <= budget and (size not in next_best or option[0] < next_best[size][0]):
                    next_best[size] = option
        best = next_best
    if not best:
        raise StatetrimError(
            f"the narrowest widths that were measured take more than {share:.0%} of the state; "
            f"measure narrower ones with --widths"
        )
    size, (cost, chosen) = min(best.items(), key=lambda item: (item[1][0], -item[0]))
    share_used = size * unit / (head_numel * len(costs))
    return Allocation(dict(zip(costs, chosen, strict=True)), cost, share_used)


def _cost(sensitivity: Sensitivity, layer: int, axis: Axis, keep: int) -> float:
    """Of one axis of one layer; noise below zero is no gain."""
    if keep == sensitivity.widths[axis]:
        return 0.0
    cut = sensitivity.find(layer, axis, keep)
    drop = sensitivity.recall_drop(cut)
    lost = max(0.0, drop.estimate) if drop else 0.0
    return max(0.0, sensitivity.nll_increase(cut).estimate) + lost
