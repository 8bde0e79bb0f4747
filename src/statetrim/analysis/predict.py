"""Checkpoint + Plans + sequences -> Prediction: each layer's error after pruning and a refit.

No cut is written: the original runs, and each of its mixers is run again on the same input with
the channels that a plan prunes masked. The output projection is fitted on some sequences and its
error measured on others, both from sums, so no activations are kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.decision import Prediction
from ..artifacts.plan import Plan
from ..artifacts.statistics import LayerStatistics
from ..defaults import REFIT_DAMPING
from ..progress import Advance, OnProgress, counter, ignore_progress
from ..runtime.kernel_hooks import Readout, hook_kernels, without_bias
from ..runtime.live import LiveModel, MixerCall, hook_mixers
from ..runtime.loading import load_live
from ..runtime.placement import Placement
from ..runtime.sequential import LayerWalk
from ..statistics.mixture import mix_layer
from ..statistics.readouts import REFIT_STATISTICS, fit_projection, relative_error
from ..storage.channel_rows import names_by_layer
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.text import Sequences


def predict(
    model: Checkpoint,
    plans: Mapping[str, Plan],
    fitted_on: Mapping[str, Sequences],
    measured_on: Mapping[str, Sequences],
    *,
    batch_size: int = 8,
    placement: Placement | None = None,
    max_bytes: int = 2**32,
    progress: OnProgress = ignore_progress,
) -> Prediction:
    """The error of every layer under each of `plans`, on each source of `measured_on`, after its
    output projection is fitted to all sources of `fitted_on`, with equal weight.

    The sums of a layer take 8 bytes x n (n + hidden size) per plan and source, n being value heads
    x kept value channels; to stay within `max_bytes` the data is read several times if needed.
    """
    live = load_live(require_prunable(model), placement)
    sources = [
        source.batches(batch_size) for source in (*fitted_on.values(), *measured_on.values())
    ]
    runs = _MaskedRuns(live, plans, sources)
    if live.weights:  # on disk: layer by layer, with the sums of one layer at a time
        advance = counter(progress, runs.tokens, "tokens")
        results = runs.run_layerwise(advance)
    else:
        groups = _layer_groups(model, plans, len(sources), max_bytes)
        advance = counter(progress, len(groups) * runs.tokens, "tokens")
        results = runs.run_groups(groups, advance)
    errors: dict[str, dict[str, dict[int, float]]] = {}
    for name in plans:
        errors[name] = {source: {} for source in fitted_on}
    for layers, sums_by_source in results:
        fit_sums, test_sums = sums_by_source[: len(fitted_on)], sums_by_source[len(fitted_on) :]
        for name in plans:
            for layer in layers:
                weight = _fit_weight([sums[name, layer] for sums in fit_sums], layer)
                for source, sums in zip(measured_on, test_sums, strict=True):
                    error = relative_error(weight, sums[name, layer])
                    errors[name][source][layer] = max(0.0, error)
    return Prediction(errors)


def _fit_weight(sources: Sequence[LayerStatistics], layer: int) -> Tensor:
    """The output projection [hidden, n] with the least sum of the sources' relative errors."""
    by_source = {str(number): sums for number, sums in enumerate(sources)}
    shares = dict.fromkeys(by_source, 1 / len(sources))
    return fit_projection(mix_layer(by_source, shares, REFIT_STATISTICS, layer), REFIT_DAMPING)


def _layer_groups(
    model: Checkpoint, plans: Mapping[str, Plan], copies: int, max_bytes: int
) -> list[tuple[int, ...]]:
    """Groups of linear layers whose sums for `copies` sources fit in `max_bytes`; at least one."""
    layers = model.geometry.layers
    output_projection = names_by_layer(model.channel_rows, "o_proj")[layers[0]]
    hidden = model.logical_tensors[output_projection].shape[0]
    layer_bytes = 0
    for plan in plans.values():
        after = plan.pruned_geometry(model.geometry)
        columns = after.num_v_heads * after.head_v_dim
        layer_bytes += copies * 8 * columns * (columns + hidden)
    size = max(1, max_bytes // layer_bytes)
    return [layers[start : start + size] for start in range(0, len(layers), size)]


SourceSums = list[dict[tuple[str, int], LayerStatistics]]
"""For every source: (plan, layer) -> sums."""


class _MaskedRuns:
    """Runs the original on the batches of every source, and each mixer again for every plan."""

    def __init__(
        self, live: LiveModel, plans: Mapping[str, Plan], sources: Sequence[Sequence[Tensor]]
    ) -> None:
        self.live, self.plans, self.sources = live, plans, sources
        self.batches = [batch for batches in sources for batch in batches]
        self.tokens = sum(batch.numel() for batch in self.batches)
        self._kept_columns = _kept_columns(live.checkpoint, plans)
        self._captured: dict[str, Tensor] = {}  # by the hooks, from the mixer call that ran last
        self._is_repeating = False

    def run_groups(
        self, groups: Sequence[tuple[int, ...]], advance: Advance
    ) -> Iterator[tuple[tuple[int, ...], SourceSums]]:
        """Run all data once per group of layers; yield each group with its sums, on the CPU."""
        for layers in groups:
            sums_by_source: SourceSums = []
            for batches in self.sources:
                sums_by_source.append({})
                with torch.inference_mode(), self._hooks(layers, sums_by_source[-1]):
                    for batch in batches:
                        self.live.hidden_states(batch)
                        advance(batch.numel())
            yield layers, _to_cpu(sums_by_source)

    def run_layerwise(self, advance: Advance) -> Iterator[tuple[tuple[int, ...], SourceSums]]:
        """Run all data once, layer by layer; yield (layer,) with its sums, on the CPU.

        For a layer without a state it yields an empty tuple and no sums.
        """
        layers = self.live.checkpoint.geometry.layers
        walk = LayerWalk(self.live, self.batches)
        for number in walk.layers(max(layers) + 1):
            measured = (number,) if number in layers else ()
            sums_by_source: SourceSums = []
            steps = count()
            for batches in self.sources:
                sums_by_source.append({})
                with self._hooks(measured, sums_by_source[-1]):
                    for batch in batches:
                        walk.run_batch(next(steps))
                        if number == max(layers):
                            advance(batch.numel())
            yield measured, _to_cpu(sums_by_source)

    @contextmanager
    def _hooks(
        self, layers: tuple[int, ...], sums: dict[tuple[str, int], LayerStatistics]
    ) -> Iterator[None]:
        """Within, every mixer call of `layers` is repeated for each plan and added to `sums`."""

        def capture_readout(module: nn.Module, args: Any) -> None:
            self._captured["values"] = args[0]

        def capture_output(module: nn.Module, args: Any, output: Tensor) -> None:
            self._captured["output"] = without_bias(module, output)

        with ExitStack() as stack:
            for layer in layers:
                projection = self.live.output_projections[layer]
                stack.callback(projection.register_forward_pre_hook(capture_readout).remove)
                stack.callback(projection.register_forward_hook(capture_output).remove)
            mixers = {layer: self.live.mixers[layer] for layer in layers}
            stack.enter_context(hook_mixers(mixers, lambda call: self._run_masked(call, sums)))
            yield

    def _run_masked(self, call: MixerCall, sums: dict[tuple[str, int], LayerStatistics]) -> None:
        """Repeat a mixer call with each plan's channels masked, and add up what a refit needs."""
        if self._is_repeating:  # the hook sees repeated calls too
            return
        layer, model = call.layer, self.live.checkpoint
        self._is_repeating, target = True, self._captured["output"]
        for name, plan in self.plans.items():
            kept = {layer: plan.kept_in_layer(layer)}
            with hook_kernels(self.live, lambda call: None, kept=kept, layers=[layer]):
                call.repeat(self.live.mixers[layer])
            values = self._captured["values"]
            columns = self._kept_columns[name, layer].to(values.device)
            readout = Readout(layer, values[..., columns], target)
            new = {each.name: each.measure(readout, model) for each in REFIT_STATISTICS}
            added = LayerStatistics(values[..., 0].numel(), new)
            sums[name, layer] = sums[name, layer] + added if (name, layer) in sums else added
        self._is_repeating = False


def _kept_columns(model: Checkpoint, plans: Mapping[str, Plan]) -> dict[tuple[str, int], Tensor]:
    """(plan, layer) -> columns [n] of the layer's read-out that the plan keeps."""
    columns: dict[tuple[str, int], Tensor] = {}
    for name, plan in plans.items():
        masks = plan.kept_masks(model)
        for layer, tensor in names_by_layer(model.channel_rows, "o_proj").items():
            all_columns = torch.arange(model.logical_tensors[tensor].shape[1])
            mask = masks.get(tensor, {}).get(1)
            columns[name, layer] = all_columns if mask is None else all_columns[mask]
    return columns


def _to_cpu(sums_by_source: SourceSums) -> SourceSums:
    return [{key: sums.cpu() for key, sums in source.items()} for source in sums_by_source]
