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
from ..errors import StatetrimError
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
        with _masked_runs(live, plans, columns, sources, layers) as on_device:
            yield
        sums = [{key: value.cpu() for key, value in source.items()} for source in on_device]
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


@contextmanager
def _masked_runs(
    live: LiveModel,
    plans: Mapping[str, Plan],
    kept_columns: Mapping[tuple[str, int], Tensor],
    sources: Sequence[Sequence[Tensor]],
    layers: Sequence[int],
) -> Iterator[list[dict[tuple[str, int], LayerStatistics]]]:
    """Within, while the original runs on the batches of `sources`, one after the other, every mixer
    call of `layers` is repeated for each plan. Yields what a refit needs, which is added up
    meanwhile: for every source (plan, layer) -> sums."""
    sums: list[dict[tuple[str, int], LayerStatistics]] = [{} for _ in sources]
    source_of_batch = [number for number, batches in enumerate(sources) for _ in batches]
    batches_read, captured = Counter[int](), list[Readout]()  # by layer; of the present call
    repeating = False

    def keep(readout: Readout) -> None:
        if readout.layer in layers:  # those of all layers are seen, and no other call takes them
            captured.append(readout)

    def take_readout(layer: int) -> Readout:
        if not captured:
            raise StatetrimError(
                f"layer {layer} of {live.checkpoint.path} never calls its output projection, so "
                f"cuts cannot be compared by it: a fused kernel reads its weight; trim to one shape"
            )
        return captured.pop()

    def run_masked(call: MixerCall) -> None:
        nonlocal repeating
        if repeating:  # the hook sees repeated calls too
            return
        layer = call.layer
        target = take_readout(layer).output
        of_source = sums[source_of_batch[batches_read[layer]]]
        batches_read[layer] += 1
        repeating = True
        for name, plan in plans.items():
            kept = {layer: plan.kept_in_layer(layer)}
            with hook_kernels(live, lambda call: None, kept=kept, layers=[layer]):
                call.repeat(live.mixers[layer])
            values = take_readout(layer).values
            columns = kept_columns[name, layer].to(values.device)
            readout = Readout(layer, values[..., columns], target)
            new = {each.name: each.measure(readout, live.checkpoint) for each in REFIT_STATISTICS}
            added = LayerStatistics(values[..., 0].numel(), new)
            before = of_source.get((name, layer))
            of_source[name, layer] = before + added if before else added
        repeating = False

    mixers = {layer: live.mixers[layer] for layer in layers}
    with (
        hook_kernels(live, lambda call: None, on_readout=keep, layers=layers),
        hook_mixers(mixers, run_masked),
    ):
        yield sums


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
