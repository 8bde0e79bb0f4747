"""Checkpoint + Plans + sequences -> Prediction: each layer's error after pruning and a refit.

No cut is written: the original runs, and each of its mixers is run again on the same input with
the channels that a plan prunes masked. The output projection is fitted on some sequences and its
error measured on others, both from sums, so no activations are kept.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product

import torch
from torch import Tensor

from ..artifacts.decision import Prediction
from ..artifacts.plan import Plan
from ..artifacts.statistics import LayerStatistics
from ..defaults import REFIT_DAMPING
from ..progress import OnProgress, counter, ignore_progress
from ..runtime.kernel_hooks import Readout, hook_kernels
from ..runtime.live import LiveModel, MixerCall, hook_mixers
from ..runtime.loading import load_live
from ..runtime.placement import Placement
from ..runtime.sequential import run_hooked
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
    batches = [batch for source in sources for batch in source]
    errors: dict[str, dict[str, dict[int, float]]] = {}
    for name in plans:
        errors[name] = {source: {} for source in measured_on}

    columns = _kept_columns(model, plans)

    @contextmanager
    def measured(layers: Sequence[int]) -> Iterator[None]:
        runs = _MaskedRuns(live, plans, columns, sources)
        with runs.hooks(layers):
            yield
        sums = [{key: value.cpu() for key, value in source.items()} for source in runs.sums]
        fit_sums, test_sums = sums[: len(fitted_on)], sums[len(fitted_on) :]
        for name, layer in product(plans, layers):
            weight = _fit_weight([each[name, layer] for each in fit_sums], layer)
            for source, each in zip(measured_on, test_sums, strict=True):
                error = relative_error(weight, each[name, layer])
                errors[name][source][layer] = max(0.0, error)

    groups = [model.geometry.layers]  # with weights on disk: a layer after the other anyway
    if live.weights is None:
        groups = _layer_groups(model, plans, len(sources), max_bytes)
    tokens = len(groups) * sum(batch.numel() for batch in batches)
    advance = counter(progress, tokens, "tokens")
    for group in groups:
        run_hooked(live, batches, measured, group, advance)
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


class _MaskedRuns:
    """Runs each mixer again for every plan, while the original runs on the batches of `sources`,
    one after the other; `sums` has for every source: (plan, layer) -> sums."""

    def __init__(
        self,
        live: LiveModel,
        plans: Mapping[str, Plan],
        kept_columns: Mapping[tuple[str, int], Tensor],
        sources: Sequence[Sequence[Tensor]],
    ) -> None:
        self.live, self.plans, self._kept_columns = live, plans, kept_columns
        self.sums: list[dict[tuple[str, int], LayerStatistics]] = [{} for _ in sources]
        self._source_of_batch = [n for n, batches in enumerate(sources) for _ in batches]
        self._batches_read = Counter[int]()  # by layer
        self._readout: Readout  # of the mixer call that ran last
        self._is_repeating = False

    @contextmanager
    def hooks(self, layers: Sequence[int]) -> Iterator[None]:
        """Within, every mixer call of `layers` is repeated for each plan and added to `sums`."""
        mixers = {layer: self.live.mixers[layer] for layer in layers}
        with (
            hook_kernels(self.live, lambda call: None, on_readout=self._keep, layers=layers),
            hook_mixers(mixers, self._run_masked),
        ):
            yield

    def _keep(self, readout: Readout) -> None:
        self._readout = readout

    def _run_masked(self, call: MixerCall) -> None:
        """Repeat a mixer call with each plan's channels masked, and add up what a refit needs."""
        if self._is_repeating:  # the hook sees repeated calls too
            return
        layer, model = call.layer, self.live.checkpoint
        sums = self.sums[self._source_of_batch[self._batches_read[layer]]]
        self._batches_read[layer] += 1
        self._is_repeating, target = True, self._readout.output
        for name, plan in self.plans.items():
            kept = {layer: plan.kept_in_layer(layer)}
            with hook_kernels(self.live, lambda call: None, kept=kept, layers=[layer]):
                call.repeat(self.live.mixers[layer])
            values = self._readout.values
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
