"""The reference for pruning: the stock model with the removed channels masked at the kernel call.

It is independent of our row tables, because it masks activations, not weights.
"""

import functools
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from statetrim import Geometry, Plan
from statetrim.artifacts.plan import AxisPlan
from statetrim.cut.shape import CHANNEL_AXES, Axis

GATED_DELTA = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
FLA = ("delta_rule", "gated_delta_rule", "kda")
PORTABLE = tuple(f"{form}_{rule}" for rule in FLA for form in ("chunk", "fused_recurrent"))
MAMBA = ("mamba2_chunk_scan", "mamba2_selective_state_update")
_OUTPUT = re.compile(r".*layers\.(\d+)\.(?:\w+\.)*(?:linear_attn|attn|mixer|mamba)\.(?:o|out)_proj")


@contextmanager
def masked(model: torch.nn.Module, plan: Plan, before: Geometry) -> Iterator[None]:
    """While active, the kernels of `model` get q and k with only the kept channels of their layer,
    and return only the kept value channels, scaled so that the output norm averages over these.
    Heads are masked in Mamba-2, whose norm runs over them, and nowhere else."""
    module = text_code(model)
    names = kernel_names(module)
    layers = itertools.cycle(sorted(plan.layers))  # kernels are called in this order
    with ExitStack() as stack:
        for name in names:
            kernel = getattr(module, name)
            stack.callback(setattr, module, name, kernel)
            setattr(module, name, _wrap(kernel, plan, layers, before))
        shrink = _kept_share(plan, before, of_heads=MAMBA[0] in names) ** 0.5
        if shrink < 1:
            # The norm averages over all channels instead of the kept ones. _wrap scales its input
            # by the root of the ratio of widths; this undoes the scaling of its output.
            for projection in output_projections(model, plan):
                hook = projection.register_forward_pre_hook(lambda _, args: (args[0] * shrink,))
                stack.callback(hook.remove)
        yield


def for_all_heads(plan: Plan, geometry: Geometry) -> Plan:
    """The heads of a plan, and its channels with any channels for the heads that go."""
    axes: dict[Axis, AxisPlan] = {"head": plan.axes["head"]}
    for axis in CHANNEL_AXES:
        tables = {}
        for layer, kept in plan.axes[axis].kept.items() if axis in plan.axes else ():
            sharing = geometry.num_v_heads // geometry.heads(axis)
            value_heads = plan.axes["head"].kept[layer].flatten().tolist()
            heads = sorted({head // sharing for head in value_heads})
            rows = dict(zip(heads, kept.tolist(), strict=True))
            any_channels = list(range(kept.shape[1]))
            every_head = [rows.get(head, any_channels) for head in range(geometry.heads(axis))]
            tables[layer] = torch.tensor(every_head)
        if tables:
            axes[axis] = AxisPlan(tables, "rand")
    return Plan(axes)


def text_code(model: torch.nn.Module) -> Any:
    """The Python module whose kernels the text model calls; it may be inside a multimodal one."""
    text = getattr(model.base_model, "language_model", model)
    name = type(text).__module__
    return sys.modules[name.replace("statetrim.portable.models", "statetrim.portable.mixers")]


def kernel_names(module: Any) -> list[str]:
    names = [name for name in GATED_DELTA + PORTABLE + MAMBA if hasattr(module, name)]
    assert names, f"{module.__name__} has no kernel this oracle knows"
    return names


@contextmanager
def recorded_calls(code: Any) -> Iterator[list[tuple[Callable[..., Any], dict[str, Any]]]]:
    """Each kernel that the module `code` calls, with its arguments by name, in order."""
    calls: list[tuple[Callable[..., Any], dict[str, Any]]] = []

    def recording(kernel: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(kernel)

        @functools.wraps(kernel)
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((kernel, dict(signature.bind(*args, **kwargs).arguments)))
            return kernel(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in kernel_names(code):
            patch.setattr(code, name, recording(getattr(code, name)))
        yield calls


def output_projections(
    model: torch.nn.Module, plan: Plan, pattern: re.Pattern[str] = _OUTPUT
) -> list[torch.nn.Module]:
    matches = [(pattern.fullmatch(name), module) for name, module in model.named_modules()]
    projections = [
        module for match, module in matches if match and int(match.group(1)) in plan.layers
    ]
    assert len(projections) == len(plan.layers)
    return projections


def output_projection(mixer: torch.nn.Module) -> Any:
    return next(m for name, m in mixer.named_children() if name in ("o_proj", "out_proj"))


def _wrap(
    kernel: Callable[..., Any], plan: Plan, layers: Iterator[int], before: Geometry
) -> Callable[..., Any]:
    signature = inspect.signature(kernel)
    pairs = (("query", "key"), ("q", "k"), ("r", "k"), ("B", "C"))
    names = next(pair for pair in pairs if pair[0] in signature.parameters)
    scaled = names not in (("r", "k"), ("B", "C"))

    def call(*args: Any, **kwargs: Any) -> Any:
        layer = next(layers)
        kept = plan.kept_in_layer(layer)
        bound = signature.bind(*args, **kwargs)
        if "key" in kept:
            mask = _mask(kept["key"], before.head_k_dim)
            for name in (*names, "p") if "p" in bound.arguments else names:  # p: Comba's
                value = bound.arguments[name]  # [..., heads (perhaps repeated), channels]
                repeat = value.shape[-2] // len(mask)
                bound.arguments[name] = value * mask.repeat_interleave(repeat, dim=0)
        result = kernel(*bound.args, **bound.kwargs)
        output, *other_results = result if isinstance(result, tuple) else (result,)
        if scaled and "key" in kept:
            # The kernel scales by the key width, which is smaller in the pruned model.
            output = output * (before.head_k_dim / _width(plan, "key")) ** 0.5
        if "value" in kept:
            values = _mask(kept["value"], before.head_v_dim)
            values = values.repeat_interleave(output.shape[-2] // len(values), dim=0)
            output = output * values * (before.head_v_dim / _width(plan, "value")) ** 0.5
        if "head" in kept and names == ("B", "C"):
            heads = _mask(kept["head"].view(1, -1), before.num_v_heads).view(-1, 1)
            output = output * heads * (before.num_v_heads / kept["head"].numel()) ** 0.5
        return (output, *other_results) if isinstance(result, tuple) else output

    return call


def _kept_share(plan: Plan, before: Geometry, *, of_heads: bool) -> float:
    """Of the channels over which the output norm averages."""
    share = _width(plan, "value") / before.head_v_dim if "value" in plan.axes else 1.0
    if of_heads and "head" in plan.axes:
        share *= _width(plan, "head") / before.num_v_heads
    return share


def _width(plan: Plan, axis: Axis) -> int:
    return max(plan.counts(axis).values())


def _mask(table: Tensor, channels: int) -> Tensor:
    return torch.zeros(len(table), channels).scatter_(1, table, 1.0)
