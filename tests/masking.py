"""The oracle of a cut: the stock model with the dropped channels zeroed where the kernel is called.

It shares nothing with our row tables: it masks activations, not weights.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

GATED_DELTA = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
FLA = ("delta_rule", "gated_delta_rule", "kda")
PORTABLE = tuple(f"{form}_{rule}" for rule in FLA for form in ("chunk", "fused_recurrent"))
MAMBA = ("mamba2_chunk_scan", "mamba2_selective_state_update")


@contextmanager
def masked(model: torch.nn.Module, kept: dict[int, Tensor], channels: int) -> Iterator[None]:
    """Within, every kernel call of `model` sees only the kept channels of its layer's q and k."""
    module = sys.modules[type(model).__module__]
    names = [name for name in GATED_DELTA + PORTABLE + MAMBA if hasattr(module, name)]
    assert names, f"{module.__name__} has no kernel this oracle knows"
    layers = _turns(sorted(kept))
    originals = {name: getattr(module, name) for name in names}
    try:
        for name in names:
            setattr(module, name, _wrap(originals[name], kept, layers, channels))
        yield
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


def _turns(layers: list[int]) -> Iterator[int]:
    """Kernels are called in layer order, again and again."""
    while True:
        yield from layers


def _wrap(
    kernel: Callable[..., Any], kept: dict[int, Tensor], layers: Iterator[int], channels: int
) -> Callable[..., Any]:
    signature = inspect.signature(kernel)
    pairs = (("query", "key"), ("q", "k"), ("B", "C"))
    names = next(pair for pair in pairs if pair[0] in signature.parameters)
    delta = names != ("B", "C")

    def call(*args: Any, **kwargs: Any) -> Any:
        table = kept[next(layers)]
        heads, keep = table.shape
        mask = torch.zeros(heads, channels).scatter_(1, table, 1.0)
        bound = signature.bind(*args, **kwargs)
        for name in names:
            value = bound.arguments[name]  # [..., heads (perhaps repeated), channels]
            repeat = value.shape[-2] // heads
            bound.arguments[name] = value * mask.repeat_interleave(repeat, dim=0)
        result = kernel(*bound.args, **bound.kwargs)
        if not delta:
            return result
        # The kernel scales by the width it sees, which is smaller in the pruned model.
        output, state = result
        return output * (channels / keep) ** 0.5, state

    return call
