"""A loaded model as after a cut, by masking; no checkpoint is written.

Keys are masked in the kernel's arguments, values in its output, scaled so that the norm's mean is
over the kept channels. A refit replaces the weights of the output projections temporarily.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from statetrim.runtime.live import LiveModel

Table = Mapping[int, Tensor]  # layer -> kept channels [heads, keep]
_NAMES = (("q", "k"), ("query", "key"))


@dataclass
class Cut:
    """Kept channels of the layers that are cut, and refitted output projections."""

    keys: Table = field(default_factory=dict)
    values: Table = field(default_factory=dict)
    weights: Mapping[int, Tensor] = field(default_factory=dict)  # [hidden, value heads x channels]


class Masked:
    """A loaded model to which cuts can be applied temporarily, with `cutting`."""

    def __init__(self, live: LiveModel) -> None:
        self.live, self.geometry = live, live.checkpoint.geometry
        self.mixers: dict[int, Any] = dict(live.mixers)
        self.projections: dict[int, Any] = dict(live.output_projections)
        self.cut: Cut | None = None
        self.gates: dict[int, Tensor] = {}  # [batch, heads, channels] that multiply q and k
        self.on_readout: Callable[[int, Tensor], None] | None = None
        self._layer = -1
        for layer, module in self.mixers.items():
            module.register_forward_pre_hook(functools.partial(self._enter, layer))
        for layer, module in self.projections.items():
            module.register_forward_pre_hook(functools.partial(self._readout, layer))
        for defining_module in {
            sys.modules[type(module).__module__] for module in self.mixers.values()
        }:
            for name in live.checkpoint.family.kernels:
                if hasattr(defining_module, name):
                    setattr(defining_module, name, self._wrap(getattr(defining_module, name)))

    @contextmanager
    def cutting(self, cut: Cut | None) -> Iterator[None]:
        with ExitStack() as stack:
            stack.callback(setattr, self, "cut", self.cut)
            for layer, weight in (cut.weights if cut else {}).items():
                parameter = self.projections[layer].weight
                stack.callback(setattr, parameter, "data", parameter.data)
                parameter.data = weight.to(parameter)
            self.cut = cut
            yield

    def _enter(self, layer: int, module: Any, args: Any) -> None:
        self._layer = layer

    def _readout(self, layer: int, module: Any, args: Any) -> Any:
        values = args[0]
        if self.cut and layer in self.cut.values:
            shape = self.geometry.num_v_heads, self.geometry.head_v_dim
            kept = self.cut.values[layer]
            values = values * (kept.shape[1] / shape[1]) ** 0.5
        if self.on_readout:
            self.on_readout(layer, values)
        return (values, *args[1:])

    def _wrap(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(kernel)
        names = next(pair for pair in _NAMES if pair[0] in signature.parameters)

        @functools.wraps(kernel)
        def call(*args: Any, **kwargs: Any) -> Any:
            layer, cut = self._layer, self.cut
            keys = cut.keys.get(layer) if cut else None
            values = cut.values.get(layer) if cut else None
            gate = self.gates.get(layer)
            if keys is None and values is None and gate is None:
                return kernel(*args, **kwargs)
            bound = signature.bind(*args, **kwargs)
            for name in names:
                x = bound.arguments[name]  # [batch, time, heads (perhaps repeated), channels]
                if keys is not None:
                    mask = _mask(keys, x.shape[-1]).to(x)
                    x = x * mask.repeat_interleave(x.shape[-2] // len(keys), dim=0)
                if gate is not None:
                    x = x * gate.repeat_interleave(x.shape[-2] // gate.shape[1], dim=1)[:, None]
                bound.arguments[name] = x
            result = kernel(*bound.args, **bound.kwargs)
            output, *other_outputs = result if isinstance(result, tuple) else (result,)
            if keys is not None:
                output = output * (self.geometry.head_k_dim / keys.shape[1]) ** 0.5
            if values is not None:
                width = self.geometry.head_v_dim
                output = output * _mask(values, width).to(output) * (width / values.shape[1]) ** 0.5
            return (output, *other_outputs) if isinstance(result, tuple) else output

        return call


def _mask(kept: Tensor, channels: int) -> Tensor:
    return torch.zeros(len(kept), channels).scatter_(1, kept, 1.0)
