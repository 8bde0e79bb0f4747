"""What calibration hooks into, for the sums that were asked for."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

from ..runtime.kernel_hooks import hook_kernels
from ..runtime.live import LiveModel
from .pair_hooks import hook_pairs
from .sums import Sums


def calibration_hooks(
    live_models: Sequence[LiveModel], sums: Sums, layers: Sequence[int] | None = None
) -> AbstractContextManager[None]:
    """Within, what the model's kernels and projections are given is added to `sums`; or, where the
    original runs with it, what each of its layers and the same layer of the cut model give.

    Where `layers` are given, only those are expected to run.
    """
    if len(live_models) > 1:
        return hook_pairs(live_models[0], live_models[1], sums.on_pair)
    on_input = sums.on_input if "input_square" in sums.sum_names else None
    readout_sums = {"readout_gram", "readout_moment"} & set(sums.sum_names)
    on_readout = sums.on_readout if readout_sums else None
    return hook_kernels(live_models[0], sums.on_call, on_input, on_readout, layers=layers)
