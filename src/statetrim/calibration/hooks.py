"""The hooks through which activations reach the sums."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from ..runtime.kernel_hooks import hook_kernels
from ..runtime.live import LiveModel
from .pair_hooks import hook_pairs
from .sums import Sums


def calibration_hooks(
    live_models: Sequence[LiveModel], sums: Sums, layers: Sequence[int] | None = None
) -> AbstractContextManager[None]:
    """A context in which forward passes add to `sums`.

    With one model: inputs and outputs of its kernels, mixers and output projections, as far as
    `sums` needs them; raises StatetrimError on exit if one of `layers` (None: all) did not run.
    With two (the original and a cut): for each layer, the output of the original's output
    projection and the input of the cut's; `layers` has no effect.
    """
    if len(live_models) > 1:
        return hook_pairs(live_models[0], live_models[1], sums.on_pair)
    on_input = sums.on_input if "input_square" in sums.sum_names else None
    readout_sums = {"readout_gram", "readout_moment"} & set(sums.sum_names)
    on_readout = sums.on_readout if readout_sums else None
    return hook_kernels(live_models[0], sums.on_call, on_input, on_readout, layers=layers)
