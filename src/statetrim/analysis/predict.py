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
from ..maths.least_squares import fit_least_squares, relative_residual
from ..progress import Advance, OnProgress, counter, ignore_progress
from ..runtime.kernel_hooks import hook_kernels
from ..runtime.live import LiveModel
from ..runtime.loading import load_live
from ..runtime.mixers import MixerCall, hook_mixers
from ..runtime.placement import Placement
from ..runtime.sequential import LayerWalk
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.text import Sequences

DAMPING = 1e-6


@dataclass
class RefitSums:
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
    max_bytes: int = 2**32,
    progress: OnProgress = ignore_progress,
) -> Prediction:
    """The error of every layer under each of `plans`, on each source of `measured_on`, once its
    output projection is fitted to all sources of `fitted_on`, which count alike.

    The sums of a layer take 8 bytes x n (n + hidden size) for each plan and source, n being value
    heads x kept value channels; the data is read as often as it takes to keep within `most_bytes`.
    """
    if set(fitted_on) != set(measured_on) or not fitted_on:
        raise StatetrimError("a prediction needs the same sources to fit and to measure on")
    live = load_live(require_prunable(model), placement)
    data = [
        [source.batches(batch_size) for source in sources.values()]
        for sources in (fitted_on, measured_on)
    ]
    runs = _MaskedRuns(live, plans, [batches for sources in data for batches in sources])
    errors: dict[str, dict[str, dict[int, float]]] = {
        name: {source: {} for source in fitted_on} for name in plans
    }
    groups = list(_layer_groups(model, plans, 2 * len(fitted_on), max_bytes))
    pass_count = 1 if live.weights else len(groups)  # a walk has the sums of one layer at a time
    advance = counter(progress, pass_count * runs.tokens, "tokens")
    for layers, sums_by_source in (
        runs.run_layerwise(advance) if live.weights else runs.run_groups(groups, advance)
    ):
        fit_sums, test_sums = sums_by_source[: len(fitted_on)], sums_by_source[len(fitted_on) :]
        for name in plans:
            for layer in layers:
                weight = _fit_weight([sums[name, layer] for sums in fit_sums])
                for source, sums in zip(measured_on, test_sums, strict=True):
                    seen = sums[name, layer]
                    errors[name][source][layer] = max(
                        0.0, relative_residual(weight, seen.gram, seen.target, seen.square)
                    )
    return Prediction(errors)


def _fit_weight(sources: Sequence[RefitSums]) -> Tensor:
    """Each source's error counts as a part of its own output."""
    scales = [1 / source.square.clamp_min(1e-300) for source in sources]
    gram = torch.stack([s.gram * scale for s, scale in zip(sources, scales, strict=True)])
    target = torch.stack([s.target * scale for s, scale in zip(sources, scales, strict=True)])
    return fit_least_squares(gram.sum(0), target.sum(0), DAMPING)


def _layer_groups(
    model: Checkpoint, plans: Mapping[str, Plan], copies: int, max_bytes: int
) -> Iterator[tuple[int, ...]]:
    """The layers, as many at a time as their sums leave room for."""
    heads, hidden = model.geometry.num_v_heads, _hidden_size(model)
    widths = [heads * (plan.keep_values or model.geometry.head_v_dim) for plan in plans.values()]
    layer_bytes = copies * sum(8 * columns * (columns + hidden) for columns in widths)
    size = max(1, max_bytes // layer_bytes)
    layers = model.geometry.layers
    yield from (layers[start : start + size] for start in range(0, len(layers), size))


def _hidden_size(model: Checkpoint) -> int:
    """Rows of the output projections."""
    shapes = [
        model.tensors[name][1].shape
        for name, layer_rows in model.channel_rows.items()
        if layer_rows.channel_rows[0].role == "o_proj"
    ]
    return int(shapes[0][0])


SourceSums = list[dict[tuple[str, int], RefitSums]]
"""Of every source, the sums of each plan and layer."""


class _MaskedRuns:
    """A model, plans, and for every source the batches that are read."""

    def __init__(
        self, live: LiveModel, plans: Mapping[str, Plan], sources: Sequence[Sequence[Tensor]]
    ) -> None:
        self.live, self.plans, self.sources = live, plans, sources
        self.tokens = sum(batch.numel() for batches in sources for batch in batches)
        self._kept_columns = _kept_columns(live.checkpoint, plans)
        self._captured: dict[str, Tensor] = {}  # of the call that is running
        self._is_repeating = False

    def run_groups(
        self, groups: Sequence[tuple[int, ...]], advance: Advance
    ) -> Iterator[tuple[tuple[int, ...], SourceSums]]:
        """All data once for every group of layers."""
        for layers in groups:
            sums_by_source: SourceSums = []
            for batches in self.sources:
                sums_by_source.append({})
                with torch.inference_mode(), self._hooks(layers, sums_by_source[-1]):
                    for batch in batches:
                        self.live.hidden_states(batch)
                        advance(batch.numel())
            yield layers, [_to_cpu(sums) for sums in sums_by_source]

    def run_layerwise(self, advance: Advance) -> Iterator[tuple[tuple[int, ...], SourceSums]]:
        """All data once, layer by layer."""
        batches = [batch for source in self.sources for batch in source]
        layers = self.live.checkpoint.geometry.layers
        for layer_pass in LayerWalk(self.live, batches).layers(max(layers) + 1):
            measured = (layer_pass.number,) if layer_pass.number in layers else ()
            sums_by_source: SourceSums = []
            first = 0
            for source in self.sources:
                sums_by_source.append({})
                with self._hooks(measured, sums_by_source[-1]):
                    for step in layer_pass.run(range(first, first + len(source))):
                        if layer_pass.number == max(layers):
                            advance(batches[step].numel())
                first += len(source)
            yield measured, [_to_cpu(sums) for sums in sums_by_source]

    @contextmanager
    def _hooks(
        self, layers: tuple[int, ...], sums: dict[tuple[str, int], RefitSums]
    ) -> Iterator[None]:
        """Within, every call of the mixers of `layers` is repeated for each plan."""

        def capture_readout(module: nn.Module, args: Any) -> None:
            self._captured["values"] = args[0]

        def capture_output(module: nn.Module, args: Any, output: Tensor) -> None:
            bias = getattr(module, "bias", None)
            self._captured["output"] = output if bias is None else output - bias

        with ExitStack() as stack:
            for layer in layers:
                projection = self.live.output_projections[layer]
                stack.callback(projection.register_forward_pre_hook(capture_readout).remove)
                stack.callback(projection.register_forward_hook(capture_output).remove)
            mixers = {layer: self.live.mixers[layer] for layer in layers}
            stack.enter_context(hook_mixers(mixers, lambda call: self._run_masked(call, sums)))
            yield

    def _run_masked(self, call: MixerCall, sums: dict[tuple[str, int], RefitSums]) -> None:
        if self._is_repeating:
            return
        self._is_repeating, target = True, self._captured["output"].flatten(0, -2).double()
        for name, plan in self.plans.items():
            with _mask_layer(self.live, plan, call.layer):
                call.repeat(self.live.mixers[call.layer])
            values = self._captured["values"].flatten(0, -2).double()
            columns = self._kept_columns[name, call.layer].to(values.device)
            _accumulate(sums, (name, call.layer), values[:, columns], target)
        self._is_repeating = False


def _mask_layer(live: LiveModel, plan: Plan, layer: int) -> AbstractContextManager[None]:
    """Within, the kernels of one layer see only the channels that the plan keeps."""
    return hook_kernels(
        live,
        lambda call: None,
        kept_keys={layer: plan.kept[layer]},
        kept_values=None if plan.kept_values is None else {layer: plan.kept_values[layer]},
        layers=[layer],
    )


def _kept_columns(model: Checkpoint, plans: Mapping[str, Plan]) -> dict[tuple[str, int], Tensor]:
    """The entries of a layer's read-out that a plan keeps."""
    columns = {}
    for name, plan in plans.items():
        for layer in model.geometry.layers:
            tables = [
                channel_rows.rows
                for channel_rows in model.channels(layer)
                if channel_rows.role == "o_proj"
            ]
            kept = None if plan.kept_values is None else plan.kept_values[layer]
            rows = tables if kept is None else [table.gather(1, kept) for table in tables]
            columns[name, layer] = torch.cat([table.flatten() for table in rows])
    return columns


def _accumulate(
    sums_by_key: dict[Any, RefitSums], key: tuple[str, int], values: Tensor, target: Tensor
) -> None:
    """values [tokens, n], target [tokens, hidden]; the sums stay on the layer's device."""
    square = target.square().sum().reshape(1)
    new = RefitSums(values.mT @ values, target.mT @ values, square)
    if key in sums_by_key:
        sums = sums_by_key[key]
        sums.gram += new.gram
        sums.target += new.target
        sums.square += new.square
    else:
        sums_by_key[key] = new


def _to_cpu(sums_by_key: Mapping[tuple[str, int], RefitSums]) -> dict[tuple[str, int], RefitSums]:
    return {
        key: RefitSums(sums.gram.cpu(), sums.target.cpu(), sums.square.cpu())
        for key, sums in sums_by_key.items()
    }
