"""Sensitivity -> widths by layer with the least predicted cost for a share of the state's bytes.

The sensitivity has the cost of pruning each layer and axis alone. The cost of a cut is taken to be
their sum; under this assumption the allocation is optimal, a knapsack with one choice per layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import inf

from ..artifacts.sensitivity import Sensitivity
from ..cut.shape import CHANNEL_AXES, ChannelAxis
from ..errors import StatetrimError
from ..serving.capacity.parts import Paging

Shapes = dict[int, tuple[int, int]]
"""Layer -> key and value channels per head."""
Costs = Mapping[int, Mapping[tuple[int, int], float]]
"""Layer -> shape -> cost of pruning the layer to that shape."""
_Cheapest = dict[tuple[int, bool], tuple[float, tuple[tuple[int, int], ...]]]
"""Sum of sizes, and whether a layer has the required shape -> least cost, shapes by layer."""


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
            for axis, keep in zip(CHANNEL_AXES, shape, strict=True):
                added_nll, lost = _losses(sensitivity, layer, axis, keep)
                nll, recall = nll + added_nll, recall + lost
        return nll, recall


def allocate(sensitivity: Sensitivity, share: float) -> Allocation:
    """The shapes of at most `share` of the bytes with the least predicted cost."""
    costs = measured_costs(sensitivity)
    head_numel = sensitivity.widths["key"] * sensitivity.widths["value"]
    return cheapest_allocation(costs, share, head_numel)


def measured_costs(sensitivity: Sensitivity) -> dict[int, dict[tuple[int, int], float]]:
    """Layer -> shape -> cost, for all pairs of measured or full widths: the sum of the measured
    costs of both axes, nats of NLL plus the share of recall lost."""
    if not {"key", "value"} <= set(sensitivity.widths):
        raise StatetrimError("shapes are allocated on both axes; measure keys and values")
    measured: dict[ChannelAxis, set[int]] = {axis: set() for axis in CHANNEL_AXES}
    for axis, width in sensitivity.variants:
        measured[axis].add(width)
    choices = list(product(*({sensitivity.widths[axis]} | measured[axis] for axis in CHANNEL_AXES)))
    costs: dict[int, dict[tuple[int, int], float]] = {}
    for layer in sensitivity.layers:
        costs[layer] = {}
        for keys, values in choices:
            key_losses = _losses(sensitivity, layer, "key", keys)
            value_losses = _losses(sensitivity, layer, "value", values)
            costs[layer][keys, values] = sum(key_losses) + sum(value_losses)
    return costs


def cheapest_allocation(costs: Costs, share: float, head_numel: int) -> Allocation:
    """The shapes of at most `share` of the state's elements with the least sum of `costs`; an
    unpruned head has `head_numel` elements."""
    if not 0 < share <= 1:
        raise StatetrimError(f"a share of the state must be between 0 and 1, not {share}")
    budget = int(share * head_numel * len(costs) + 1e-9)
    sizes = {shape: shape[0] * shape[1] for shapes in costs.values() for shape in shapes}
    return _allocation(_knapsack(costs, sizes, budget), share, head_numel)


def allocate_in_pages(
    sensitivity: Sensitivity,
    share: float,
    paging: Paging,
    is_served: Callable[[tuple[int, int]], bool],
) -> Allocation:
    """The shapes with the least predicted cost that take no more of vLLM's cache, with its plugin,
    than one shape for all layers with `share` of the state may take. `is_served` are the shapes
    that vLLM's kernels take; layers may always stay whole. Raises StatetrimError if none fits."""
    whole = sensitivity.widths["key"], sensitivity.widths["value"]
    costs = {
        layer: {shape: cost for shape, cost in shapes.items() if shape == whole or is_served(shape)}
        for layer, shapes in measured_costs(sensitivity).items()
    }
    return cheapest_in_pages(costs, share, paging, whole)


def cheapest_in_pages(
    costs: Costs, share: float, paging: Paging, whole: tuple[int, int]
) -> Allocation:
    """The shapes with the least sum of `costs` that take no more of vLLM's cache than one shape for
    all layers with `share` of the state of `whole`. Raises StatetrimError if none fits.

    The narrowest shape decides the parts of all others, and the largest part is the page. So every
    pair of a narrowest shape, which some layer must take, and a page is a knapsack of its own.
    """
    memory = paging.memory_of_share(len(costs), share, whole) * (1 + 1e-9)
    all_shapes = {shape for shapes in costs.values() for shape in shapes}
    sizes = {shape: paging.size(paging.heads(*shape)) for shape in all_shapes}
    group = max(paging.softmax_layers, 1)
    best: tuple[Shapes, float] | None = None
    for narrowest in sorted(all_shapes):
        layouts = {
            shape: paging.layout({shape, narrowest})
            for shape in all_shapes
            if sizes[shape] >= sizes[narrowest]
        }
        for page in sorted({layout.page for layout in layouts.values()}):
            parts = {
                shape: layout.parts[shape]
                for shape, layout in layouts.items()
                if layout.page <= page
            }
            fitting = 0  # pages of this size
            while paging.stored(fitting + group, page) <= memory:
                fitting += group
            chosen = _knapsack(costs, parts, fitting, required=narrowest)
            if chosen is not None and (best is None or chosen[1] < best[1]):
                best = chosen
    return _allocation(best, share, whole[0] * whole[1])


def _knapsack(
    costs: Costs,
    sizes: Mapping[tuple[int, int], int],
    budget: int,
    required: tuple[int, int] | None = None,
) -> tuple[Shapes, float] | None:
    """The shapes by layer with the least sum of costs whose sizes sum to at most `budget`, and that
    sum; of equal ones, the largest. None if nothing fits. Shapes without a size are left out, and
    at least one layer has the `required` shape."""
    best: _Cheapest = {(0, required is None): (0.0, ())}
    for shapes in costs.values():
        next_best: _Cheapest = {}
        for (used, has_required), (cost_before, chosen) in best.items():
            for shape, added_cost in shapes.items():
                size = used + sizes.get(shape, budget + 1)
                key = size, has_required or shape == required
                cost = cost_before + added_cost
                if size <= budget and (key not in next_best or cost < next_best[key][0]):
                    next_best[key] = cost, (*chosen, shape)
        best = _without_costlier(next_best)
    complete = [
        (cost, -size, x) for (size, has_required), (cost, x) in best.items() if has_required
    ]
    if not complete:
        return None
    cost, _, chosen = min(complete)
    return dict(zip(costs, chosen, strict=True)), cost


def _without_costlier(best: _Cheapest) -> _Cheapest:
    """Without the choices that cost more than a smaller one."""
    kept = {}
    least = {False: inf, True: inf}
    for key in sorted(best):
        _, has_required = key
        if best[key][0] <= least[has_required]:
            least[has_required] = best[key][0]
            kept[key] = best[key]
    return kept


def _allocation(chosen: tuple[Shapes, float] | None, share: float, head_numel: int) -> Allocation:
    """What a knapsack for `share` of the state chose; raises StatetrimError if nothing fitted."""
    if chosen is None:
        raise StatetrimError(
            f"the narrowest widths that were measured take more than {share:.0%} of the state; "
            f"measure narrower ones with --widths"
        )
    shapes, cost = chosen
    kept = sum(keys * values for keys, values in shapes.values())
    return Allocation(shapes, cost, kept / (head_numel * len(shapes)))


def _losses(
    sensitivity: Sensitivity, layer: int, axis: ChannelAxis, keep: int
) -> tuple[float, float]:
    """Increase of NLL in nats, and the share of recall lost, when one axis of one layer keeps
    `keep` channels; 0 for all. Negative estimates are noise and count as 0."""
    if keep == sensitivity.widths[axis]:
        return 0.0, 0.0
    cut = sensitivity.find(layer, axis, keep)
    drop = sensitivity.original.recall_drop(cut.samples)
    lost = max(0.0, drop.estimate) if drop else 0.0
    return max(0.0, sensitivity.original.nll_increase(cut.samples).estimate), lost
