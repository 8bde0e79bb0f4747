"""A running model with the channels or heads masked that a plan prunes; nothing is written."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.plan import Plan
from .kernel_hooks import hook_kernels
from .live import LiveModel


def masked(live: LiveModel, plan: Plan) -> AbstractContextManager[None]:
    """Within, the model gives the outputs of the cut that `plan` makes. Other models of the same
    modelling module must not run."""
    if plan.kept_heads is not None:
        return _masked_heads(live, plan)
    return hook_kernels(
        live, lambda call: None, kept_keys=plan.kept, kept_values=plan.kept_values or None
    )


@contextmanager
def _masked_heads(live: LiveModel, plan: Plan) -> Iterator[None]:
    with ExitStack() as stack:
        for layer, kept in (plan.kept_heads or {}).items():
            stack.enter_context(mask_heads(live, layer, kept.flatten()))
        yield


@contextmanager
def mask_heads(live: LiveModel, layer: int, kept: Tensor) -> Iterator[None]:
    """Within, a layer's output projection gets zeros for all value heads but `kept`."""
    mask = torch.zeros(live.checkpoint.geometry.num_v_heads, 1)
    mask[kept] = 1.0

    def mask_input(module: nn.Module, args: Any) -> tuple[Any, ...]:
        masked = args[0].unflatten(-1, (len(mask), -1)) * mask.to(args[0])
        return masked.flatten(-2), *args[1:]

    with live.output_projections[layer].register_forward_pre_hook(mask_input):
        yield
