"""Statistics of queries, keys and their projections.

Gram matrices are summed separately, before and after the L2 norm, so that one calibration serves
methods that need either. Gradients are signed sums over the data.
"""

from typing import Literal

from torch import Tensor

from ..portable.kernels import l2_normalized
from ..runtime.kernel_hooks import KernelCall, MixerInput
from ..storage.checkpoint import Checkpoint
from .statistic import Gradients, Statistic, magnitudes, traces

Side = Literal["query", "key"]


def _input_square(seen: MixerInput, model: Checkpoint) -> Tensor:
    return seen.hidden.flatten(0, -2).double().square().sum(0)


def _gram(side: Side, *, unit: bool = False) -> Statistic:
    """Gram matrices of queries or keys, of `unit` ones after the L2 norm if the kernel has one."""

    def measure(call: KernelCall, model: Checkpoint) -> Tensor:
        activations = call.queries_by_key_head if side == "query" else call.key
        rows = activations.flatten(0, 1).transpose(0, 1).double()  # [heads, tokens, channels]
        rows = l2_normalized(rows) if unit and model.family.normalizes_keys else rows
        return rows.mT @ rows

    kind = "unit_gram" if unit else "gram"
    scale = traces(f"query_{kind}", f"key_{kind}")
    return Statistic(f"{side}_{kind}", "key_heads keys keys", KernelCall, measure, scale)


def _gradient(side: Side) -> Statistic:
    def measure(gradients: Gradients, model: Checkpoint) -> Tensor:
        return gradients.query if side == "query" else gradients.key

    shape, scale = (
        f"key_heads keys {side}_copies hidden",
        magnitudes("query_gradient", "key_gradient"),
    )
    return Statistic(f"{side}_gradient", shape, Gradients, measure, scale)


KEY_STATISTICS = (
    Statistic("input_square", "hidden", MixerInput, _input_square),
    _gram("query"),
    _gram("key"),
    _gram("query", unit=True),
    _gram("key", unit=True),
    _gradient("query"),
    _gradient("key"),
)
