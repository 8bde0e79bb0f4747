"""Running sums over calibration tokens, and the hooks that update them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.statistics import LayerStatistics
from ..errors import StatetrimError
from ..runtime.kernel_hooks import KernelCall, MixerInput, Readout, hook_kernels, without_bias
from ..runtime.live import LiveModel, MixerCall, hook_mixers
from ..runtime.states import StateBlock, walk_states
from ..statistics.activations import STATE_EVERY
from ..statistics.statistic import Gradients, Seen, Statistic
from ..storage.checkpoint import Checkpoint


class Sums:
    """Float64 sums of every linear layer. They stay on its device and are copied to the CPU
    together: one copy per sum and batch would synchronize the device each time."""

    def __init__(self, model: Checkpoint, statistics: Sequence[Statistic]) -> None:
        self.model, self.statistics, self.tokens = model, statistics, 0
        self._sums: dict[int, dict[str, Tensor]] = {i: {} for i in model.geometry.layers}

    def sees(self, kind: type[Seen]) -> bool:
        """Whether one of the statistics is measured on objects of this type."""
        return any(statistic.sees is kind for statistic in self.statistics)

    def add(self, seen: Seen) -> None:
        """Add what the statistics measure on `seen`, on its device."""
        sums = self._sums[seen.layer]
        for statistic in self.statistics:
            if statistic.sees is not type(seen):
                continue
            value = statistic.measure(seen, self.model).double()
            if statistic.name in sums:
                sums[statistic.name] += value
                continue
            expected = statistic.shape_in(self.model, seen.layer)
            if value.shape != expected:
                raise StatetrimError(
                    f"statistic {statistic.name!r} measures {list(value.shape)} in layer "
                    f"{seen.layer}, and its shape is {list(expected)}"
                )
            sums[statistic.name] = value

    def on_call(self, call: KernelCall) -> None:
        """Add what the statistics measure on a kernel call, and on the states that it passes."""
        self.add(call)
        if self.sees(StateBlock):
            for block in walk_states(call, self.model.family, STATE_EVERY):
                self.add(block)

    def on_gradients(self, mixers: Mapping[int, nn.Module]) -> None:
        """Add the gradients of the query and key projection weights, and reset them to None."""
        for layer, mixer in mixers.items():
            copies: dict[str, list[Tensor]] = {"q_proj": [], "k_proj": []}
            projections = [rows for rows in self.model.channels(layer) if rows.role in copies]
            for channel_rows in projections:
                gradient = mixer.get_parameter(channel_rows.tensor).grad
                assert gradient is not None, f"{channel_rows.tensor} took no part in the loss"
                rows = channel_rows.rows.to(gradient.device)
                copies[channel_rows.role].append(gradient[rows].double())
            query, key = (torch.stack(rows, dim=2) for rows in copies.values())
            self.add(Gradients(layer, query, key))
            for channel_rows in projections:
                mixer.get_parameter(channel_rows.tensor).grad = None

    def to_cpu(self, layer: int) -> None:
        """Move a layer's sums to the CPU."""
        self._sums[layer] = _to_cpu(self._sums[layer])

    def cpu_tensors(self) -> list[Tensor]:
        """Move all sums to the CPU and return them, in the same order in every process."""
        tensors = []
        for layer in sorted(self._sums):
            self.to_cpu(layer)
            for name in sorted(self._sums[layer]):
                tensors.append(self._sums[layer][name])
        return tensors

    @property
    def layer_statistics(self) -> dict[int, LayerStatistics]:
        """The sums by layer, on the CPU; those that are there already are not copied, so that later
        additions change them."""
        return {i: LayerStatistics(self.tokens, _to_cpu(sums)) for i, sums in self._sums.items()}

    def restore(self, saved: Mapping[int, LayerStatistics]) -> None:
        """Replace the sums and the token count by those of an earlier run."""
        for layer, statistics in saved.items():
            self.tokens = statistics.tokens
            self._sums[layer] = dict(statistics.sums)


def _to_cpu(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All sums on the CPU; those of a device are concatenated, so that one copy moves them."""
    on_device = [name for name, value in sums.items() if value.device.type != "cpu"]
    on_cpu = dict(sums)
    if not on_device:
        return on_cpu
    flat = torch.cat([sums[name].flatten() for name in on_device]).cpu()
    start = 0
    for name in on_device:
        end = start + sums[name].numel()
        on_cpu[name] = flat[start:end].reshape(sums[name].shape).clone()
        start = end
    return on_cpu


def calibration_hooks(
    live_models: Sequence[LiveModel], sums: Sums, layers: Sequence[int] | None = None
) -> AbstractContextManager[None]:
    """Within, forward passes add to `sums` what its statistics see of kernels, mixers and output
    projections in `layers` (None: all). With two models, an original and its cut: the output of the
    original's output projections, and the input of the cut's."""
    if len(live_models) > 1:
        return _hook_pairs(live_models[0], live_models[1], sums.add)
    on_input = sums.add if sums.sees(MixerInput) else None
    on_readout = sums.add if sums.sees(Readout) else None
    return hook_kernels(live_models[0], sums.on_call, on_input, on_readout, layers=layers)


@contextmanager
def _hook_pairs(
    original: LiveModel, cut: LiveModel, on_pair: Callable[[Readout], None]
) -> Iterator[None]:
    """Within, a forward pass of a mixer of `original` also runs that of `cut` on its input;
    `on_pair` gets the values of the cut and the output of the original."""
    captured: dict[str, Tensor] = {}

    def capture_output(module: Any, args: Any, output: Tensor) -> None:
        captured["output"] = without_bias(module, output)

    def capture_values(module: nn.Module, args: Any) -> None:
        captured["values"] = args[0].detach()

    def run_cut_layer(call: MixerCall) -> None:
        call.repeat(cut.mixers[call.layer])
        if not captured:
            raise StatetrimError(
                f"layer {call.layer} of {cut.checkpoint.path} never calls its output projection, "
                f"so it cannot be refitted: a fused kernel reads its weight; trim with --no-refit"
            )
        values = captured.pop("values")  # the two models may be on different GPUs
        on_pair(Readout(call.layer, values, captured.pop("output").to(values.device)))

    with ExitStack() as stack:
        for module in original.output_projections.values():
            stack.callback(module.register_forward_hook(capture_output).remove)
        for module in cut.output_projections.values():
            stack.callback(module.register_forward_pre_hook(capture_values).remove)
        stack.enter_context(hook_mixers(original.mixers, run_cut_layer))
        yield
