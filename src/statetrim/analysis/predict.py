"""Checkpoint + Plans + sequences -> Prediction: what each plan would miss after a refit.

Nothing is written: the original runs, and each of its mixers is given the same input again with
the channels of each plan masked. The output projection is fitted to one part of the data and its
error taken on another, both from sums, so that no activation is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.decision import Prediction
from ..artifacts.plan import Plan
from ..errors import StatetrimError
from ..maths.least_squares import fit, missed
from ..progress import Advance, OnProgress, counter, ignore
from ..runtime.kernel_hooks import hook_kernels
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.mixers import MixerCall, hook_mixers
from ..runtime.placement import Placement
from ..runtime.sequential import LayerWalk
from ..storage.checkpoint import Checkpoint, with_weights
from ..storage.text import Sequences

DAMPING = 1e-6


@dataclass
class Sums:
    """Of one layer under one plan, on one source: read-out a, the original's output y."""

    gram: Tensor  # [n, n]: aa'
    target: Tensor  # [hidden, n]: ya'
    square: Tensor  # [1]: y's squares


def predict(
    model: Checkpoint,
    plans: Mapping[str, Plan],
    fitted_on: Mapping[str, Sequences],
    measured_on: Mapping[str, Sequences],
    *,
    batch_size: int = 8,
    placement: Placement | None = None,
    most_bytes: int = 2**32,
    progress: OnProgress = ignore,
) -> Prediction:
    """The error of every layer under each of `plans`, on each source of `measured_on`, once its
    output projection is fitted to all sources of `fitted_on`, which count alike.

    The sums of a layer take 8 bytes x n (n + hidden size) for each plan and source, n being value
    heads x kept value channels; the data is read as often as it takes to keep within `most_bytes`.
    """
    if set(fitted_on) != set(measured_on) or not fitted_on:
        raise StatetrimError("a prediction needs the same sources to fit and to measure on")
    live = load_live(with_weights(model), placement)
    data = [
        [source.batches(batch_size) for source in part.values()]
        for part in (fitted_on, measured_on)
    ]
    reading = _Reading(live, plans, [batches for part in data for batches in part])
    errors: dict[str, dict[str, dict[int, float]]] = {
        name: {source: {} for source in fitted_on} for name in plans
    }
    groups = list(_groups(model, plans, 2 * len(fitted_on), most_bytes))
    passes = 1 if live.weights else len(groups)  # a walk has the sums of one layer at a time
    advance = counter(progress, passes * reading.tokens, "tokens")
    for layers, found in reading.walk(advance) if live.weights else reading.passes(groups, advance):
        fits, tests = found[: len(fitted_on)], found[len(fitted_on) :]
        for name in plans:
            for layer in layers:
                weight = _fitted([sums[name, layer] for sums in fits])
                for source, sums in zip(measured_on, tests, strict=True):
                    seen = sums[name, layer]
                    errors[name][source][layer] = max(
                        0.0, missed(weight, seen.gram, seen.target, seen.square)
                    )
    return Prediction(errors)


def _fitted(sources: Sequence[Sums]) -> Tensor:
    """Each source's error counts as a part of its own output."""
    scales = [1 / source.square.clamp_min(1e-300) for source in sources]
    gram = torch.stack([s.gram * scale for s, scale in zip(sources, scales, strict=True)])
    target = torch.stack([s.target * scale for s, scale in zip(sources, scales, strict=True)])
    return fit(gram.sum(0), target.sum(0), DAMPING)


def _groups(
    model: Checkpoint, plans: Mapping[str, Plan], copies: int, most_bytes: int
) -> Iterator[tuple[int, ...]]:
    """The layers, as many at a time as their sums leave room for."""
    heads, hidden = model.geometry.num_v_heads, _hidden_size(model)
    widths = [heads * (plan.keep_values or model.geometry.head_v_dim) for plan in plans.values()]
    each = copies * sum(8 * n * (n + hidden) for n in widths)
    size = max(1, most_bytes // each)
    layers = model.geometry.layers
    yield from (layers[start : start + size] for start in range(0, len(layers), size))


def _hidden_size(model: Checkpoint) -> int:
    """Rows of the output projections."""
    shapes = [
        model.tensors[name][1].shape
        for name, owner in model.claims.items()
        if owner.claims[0].role == "o_proj"
    ]
    return int(shapes[0][0])


Found = list[dict[tuple[str, int], Sums]]
"""Of every source, the sums of each plan and layer."""


class _Reading:
    """A model, plans, and for every source the batches that are read."""

    def __init__(
        self, live: LiveModel, plans: Mapping[str, Plan], sources: Sequence[Sequence[Tensor]]
    ) -> None:
        self.live, self.plans, self.sources = live, plans, sources
        self.tokens = sum(batch.numel() for batches in sources for batch in batches)
        self._columns = _columns(live.checkpoint, plans)
        self._seen: dict[str, Tensor] = {}  # of the call that is running
        self._masked = False

    def passes(
        self, groups: Sequence[tuple[int, ...]], advance: Advance
    ) -> Iterator[tuple[tuple[int, ...], Found]]:
        """All data once for every group of layers."""
        for layers in groups:
            found: Found = []
            for batches in self.sources:
                found.append({})
                with torch.inference_mode(), self._hooks(layers, found[-1]):
                    for batch in batches:
                        self.live.hidden(batch)
                        advance(batch.numel())
            yield layers, [_on_host(sums) for sums in found]

    def walk(self, advance: Advance) -> Iterator[tuple[tuple[int, ...], Found]]:
        """All data once, layer by layer."""
        batches = [batch for source in self.sources for batch in source]
        layers = self.live.checkpoint.geometry.layers
        for turn in LayerWalk(self.live, batches).turns(max(layers) + 1):
            here = (turn.number,) if turn.number in layers else ()
            found: Found = []
            first = 0
            for source in self.sources:
                found.append({})
                with self._hooks(here, found[-1]):
                    for step in turn.run(range(first, first + len(source))):
                        if turn.number == max(layers):
                            advance(batches[step].numel())
                first += len(source)
            yield here, [_on_host(sums) for sums in found]

    @contextmanager
    def _hooks(self, layers: tuple[int, ...], found: dict[tuple[str, int], Sums]) -> Iterator[None]:
        """Within, every call of the mixers of `layers` is repeated for each plan."""

        def readout(module: nn.Module, args: Any) -> None:
            self._seen["values"] = args[0]

        def remember(module: nn.Module, args: Any, output: Tensor) -> None:
            bias = getattr(module, "bias", None)
            self._seen["output"] = output if bias is None else output - bias

        with ExitStack() as stack:
            for layer in layers:
                reader = self.live.output_projections[layer]
                stack.callback(reader.register_forward_pre_hook(readout).remove)
                stack.callback(reader.register_forward_hook(remember).remove)
            mixers = {layer: self.live.mixers[layer] for layer in layers}
            stack.enter_context(hook_mixers(mixers, lambda call: self._repeat(call, found)))
            yield

    def _repeat(self, call: MixerCall, found: dict[tuple[str, int], Sums]) -> None:
        if self._masked:
            return
        self._masked, target = True, self._seen["output"].flatten(0, -2).double()
        for name, plan in self.plans.items():
            with _cut(self.live, plan, call.layer):
                call.repeat(self.live.mixers[call.layer])
            values = self._seen["values"].flatten(0, -2).double()
            columns = self._columns[name, call.layer].to(values.device)
            _add(found, (name, call.layer), values[:, columns], target)
        self._masked = False


def _cut(live: LiveModel, plan: Plan, layer: int) -> AbstractContextManager[None]:
    """Within, the kernels of one layer see only the channels that the plan keeps."""
    return hook_kernels(
        live,
        lambda call: None,
        only={layer: plan.kept[layer]},
        only_values=None if plan.kept_values is None else {layer: plan.kept_values[layer]},
        layers=[layer],
    )


def _columns(model: Checkpoint, plans: Mapping[str, Plan]) -> dict[tuple[str, int], Tensor]:
    """The entries of a layer's read-out that a plan keeps."""
    found = {}
    for name, plan in plans.items():
        for layer in model.geometry.layers:
            tables = [claim.rows for claim in model.channels(layer) if claim.role == "o_proj"]
            kept = None if plan.kept_values is None else plan.kept_values[layer]
            rows = tables if kept is None else [table.gather(1, kept) for table in tables]
            found[name, layer] = torch.cat([table.flatten() for table in rows])
    return found


def _add(found: dict[Any, Sums], key: tuple[str, int], values: Tensor, target: Tensor) -> None:
    """values [tokens, n], target [tokens, hidden]; the sums stay on the layer's device."""
    square = target.square().sum().reshape(1)
    new = Sums(values.mT @ values, target.mT @ values, square)
    if key in found:
        held = found[key]
        held.gram += new.gram
        held.target += new.target
        held.square += new.square
    else:
        found[key] = new


def _on_host(found: Mapping[tuple[str, int], Sums]) -> dict[tuple[str, int], Sums]:
    return {
        key: Sums(held.gram.cpu(), held.target.cpu(), held.square.cpu())
        for key, held in found.items()
    }
