"""Sensitivity -> widths by layer with the least predicted cost for a share of the state's bytes.

The sensitivity has the cost of pruning each layer and axis alone. The cost of a cut is taken to be
their sum; under this assumption the allocation is optimal, a knapsack with one choice per layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd

from ..artifacts.sensitivity import Sensitivity
from ..errors import StatetrimError
from ..geometry import Axis
from ..serving.capacity.parts import Paging

AXES: tuple[Axis, Axis] = ("key", "value")
Shapes = dict[int, tuple[int, int]]
"""Layer -> key and value channels per head."""
Costs = Mapping[int, Mapping[tuple[int, int], float]]
"""Layer -> shape -> cost of pruning the layer to that shape."""


@dataclass(frozen=True)
class Allocation:
    """Shapes by layer, their predicted cost, and their share of the state's bytes."""

    shapes: Shapes
    cost: float
    share: float

    def __str__(self) -> str:
        """The shapes in the format of `--to`."""
        return ",".join(f"{layer}={k}x{v}" for layer, (k, v) in sorted(self.shapes.items()))

    def losses(self, sensitivity: Sensitivity) -> tuple[float, float]:
        """The predicted increase of NLL in nats, and share of recall lost."""
        nll = recall = 0.0
        for layer, shape in self.shapes.items():
            for axis, keep in zip(AXES, shape, strict=True):
                added_nll, lost = _losses(sensitivity, layer, axis, keep)
                nll, recall = nll + added_nll, recall + lost
        return nll, recall


def allocate(sensitivity: Sensitivity, share: float) -> Allocation:
    """The shapes of `measured_costs` of at most `share` of the bytes with the least predicted cost.
    Raises StatetrimError if no measured width is narrow enough, or if an axis was not measured."""
    costs = measured_costs(sensitivity)
    head_numel = sensitivity.widths["key"] * sensitivity.widths["value"]
    return cheapest_allocation(costs, share, head_numel)


def measured_costs(sensitivity: Sensitivity) -> dict[int, dict[tuple[int, int], float]]:
    """Layer -> shape -> cost, for all pairs of measured or full widths: the sum of the measured
    costs of both axes, nats of NLL plus the share of recall lost. Raises StatetrimError if an axis
    was not measured."""
    if not {"key", "value"} <= set(sensitivity.widths):
        raise StatetrimError("shapes are allocated on both axes; measure keys and values")
    measured: dict[Axis, set[int]] = {axis: set() for axis in AXES}
    for axis, width in sensitivity.variants:
        measured[axis].add(width)
    choices = list(product(*({sensitivity.widths[axis]} | measured[axis] for axis in AXES)))
    costs: dict[int, dict[tuple[int, int], float]] = {}
    for layer in sensitivity.layers:
        costs[layer] = {}
        for keys, values in choices:
            key_losses = _losses(sensitivity, layer, "key", keys)
            value_losses = _losses(sensitivity, layer, "value", values)
            costs[layer][keys, values] = sum(key_losses) + sum(value_losses)
    return costs


def cheapest_allocation(costs: Costs, share: float, head_numel: int) -> Allocation:
    """The shapes of at most `share` of the state's elements with the least sum of `costs`.

    `head_numel` is the number of elements of an unpruned head. Raises StatetrimError if nothing
    fits, or unless 0 < share <= 1.
    """
    if not 0 < share <= 1:
        raise StatetrimError(f"a share of the state must be between 0 and 1, not {share}")
    unit = gcd(*(k * v for shapes in costs.values() for k, v in shapes))
    budget = int(share * head_numel * len(costs) + 1e-9) // unit
    sizes = {shape: shape[0] * shape[1] // unit for shapes in costs.values() for shape in shapes}
    chosen = _knapsack(costs, sizes, budget)
    if chosen is None:
        raise _too_wide(share)
    shapes, cost = chosen
    return Allocation(shapes, cost, _share(shapes, head_numel))


def allocate_in_pages(
    sensitivity: Sensitivity,
    share: float,
    paging: Paging,
    is_served: Callable[[tuple[int, int]], bool],
) -> Allocation:
    """The shapes with the least predicted cost that take no more of vLLM's cache, with its plugin,
    than one shape for all layers with `share` of the bytes. `is_served` are the shapes that vLLM's
    kernels take; layers may always stay whole.

    Every layer takes whole pages of the size of the narrowest shape, groups are padded, and all
    measured shapes are tried as the narrowest. Raises StatetrimError if none fits.
    """
    whole = sensitivity.widths["key"], sensitivity.widths["value"]
    costs = {
        layer: {shape: cost for shape, cost in shapes.items() if shape == whole or is_served(shape)}
        for layer, shapes in measured_costs(sensitivity).items()
    }
    head_numel = whole[0] * whole[1]
    memory = paging.padded(len(costs)) * share * head_numel
    best: tuple[Shapes, float] | None = None
    measured = [shape for shapes in costs.values() for shape in shapes]
    for page in sorted({keys * values for keys, values in measured}):
        pages = {}
        for shape in measured:
            parts = paging.parts(shape[0] * shape[1], page)
            if parts is not None:
                pages[shape] = parts
        fitting = int(memory / page + 1e-9)
        chosen = _knapsack(costs, pages, fitting - fitting % max(paging.softmax_layers, 1))
        if chosen is not None and (best is None or chosen[1] < best[1]):
            best = chosen
    if best is None:
        raise _too_wide(share)
    return Allocation(*best, _share(best[0], head_numel))


def _knapsack(
    costs: Costs, sizes: Mapping[tuple[int, int], int], budget: int
) -> tuple[Shapes, float] | None:
    """The shapes by layer with the least sum of costs whose sizes sum to at most `budget`, and that
    sum; of equal ones, the largest. None if nothing fits. Shapes without a size are left out."""
    Cheapest = dict[int, tuple[float, tuple[tuple[int, int], ...]]]
    best: Cheapest = {0: (0.0, ())}  # sum of sizes -> cost and shapes of the layers so far
    for shapes in costs.values():
        next_best: Cheapest = {}
        for used, (cost, chosen) in best.items():
            for shape, added_cost in shapes.items():
                if shape not in sizes:
                    continue
                size = used + sizes[shape]
                option = (cost + added_cost, (*chosen, shape))
                if size <= budget and (size not in next_best or option[0] < next_best[size][0]):
                    next_best[size] = option
        best = next_best
    if not best:
        return None
    _, (cost, chosen) = min(best.items(), key=lambda item: (item[1][0], -item[0]))
    return dict(zip(costs, chosen, strict=True)), cost


def _share(shapes: Shapes, head_numel: int) -> float:
    return sum(keys * values for keys, values in shapes.values()) / (head_numel * len(shapes))


def _too_wide(share: float) -> StatetrimError:
    return StatetrimError(
        f"the narrowest widths that were measured take more than {share:.0%} of the state; "
        f"measure narrower ones with --widths"
    )


def _losses(sensitivity: Sensitivity, layer: int, axis: Axis, keep: int) -> tuple[float, float]:
    """Increase of NLL in nats, and the share of recall lost, when one axis of one layer keeps
    `keep` channels; 0 for all. Negative estimates are noise and count as 0."""
    if keep == sensitivity.widths[axis]:
        return 0.0, 0.0
    cut = sensitivity.find(layer, axis, keep)
    drop = sensitivity.recall_drop(cut)
    lost = max(0.0, drop.estimate) if drop else 0.0
    return max(0.0, sensitivity.nll_increase(cut).estimate), lost
