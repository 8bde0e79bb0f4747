"""Statistics of queries, keys and their projections.

Gram matrices are summed separately, before and after the L2 norm, so that one calibration serves
methods that need either. Gradients are signed sums over the data.
"""

from torch import Tensor

from ..portable.kernels import l2_normalized
from ..runtime.kernel_hooks import KernelCall, MixerInput
from ..storage.checkpoint import Checkpoint
from .statistic import Gradients, Statistic, magnitudes, traces


def _gram(activations: Tensor, normalizes: bool = False) -> Tensor:
    """[batch, time, heads, channels] -> Gram matrices [heads, channels, channels], float64."""
    rows = activations.flatten(0, 1).transpose(0, 1).double()
    rows = l2_normalized(rows) if normalizes else rows
    return rows.mT @ rows


def _input_square(seen: MixerInput, model: Checkpoint) -> Tensor:
    return seen.hidden.flatten(0, -2).double().square().sum(0)


def _query_gram(call: KernelCall, model: Checkpoint) -> Tensor:
    return _gram(call.queries_by_key_head)


def _key_gram(call: KernelCall, model: Checkpoint) -> Tensor:
    return _gram(call.key)


def _query_unit_gram(call: KernelCall, model: Checkpoint) -> Tensor:
    return _gram(call.queries_by_key_head, model.family.normalizes_keys)


def _key_unit_gram(call: KernelCall, model: Checkpoint) -> Tensor:
    return _gram(call.key, model.family.normalizes_keys)


def _query_gradient(gradients: Gradients, model: Checkpoint) -> Tensor:
    return gradients.query


def _key_gradient(gradients: Gradients, model: Checkpoint) -> Tensor:
    return gradients.key


GRAM, UNIT_GRAM = traces("query_gram", "key_gram"), traces("query_unit_gram", "key_unit_gram")
GRADIENT = magnitudes("query_gradient", "key_gradient")

KEY_STATISTICS = (
    Statistic("input_square", "hidden", MixerInput, _input_square),
    Statistic("query_gram", "key_heads keys keys", KernelCall, _query_gram, GRAM),
    Statistic("key_gram", "key_heads keys keys", KernelCall, _key_gram, GRAM),
    Statistic("query_unit_gram", "key_heads keys keys", KernelCall, _query_unit_gram, UNIT_GRAM),
    Statistic("key_unit_gram", "key_heads keys keys", KernelCall, _key_unit_gram, UNIT_GRAM),
    Statistic(
        "query_gradient", "key_heads keys query_copies hidden", Gradients, _query_gradient, GRADIENT
    ),
    Statistic(
        "key_gradient", "key_heads keys key_copies hidden", Gradients, _key_gradient, GRADIENT
    ),
)
