"""The hooks through which activations reach the sums."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from ..errors import StatetrimError
from ..runtime.kernel_hooks import MixerInput, Readout, hook_kernels, without_bias
from ..runtime.live import LiveModel, MixerCall, hook_mixers
from .sums import Sums


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
