"""Hooks where the recurrence kernel is called: our only monkeypatch.

Hooks on modules would not do: fused convolutions bypass them, silently. The kernel call is the one
place every family passes, with q and k after convolution and SiLU, before the L2 norm.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import StatetrimError
from ..geometry import Axis
from ..storage.checkpoint import Checkpoint
from .live import LiveModel

L2_EPS = 1e-6  # of every kernel that normalises q and k


@dataclass(frozen=True, eq=False)
class KernelCall:
    """One layer's kernel call: what the state was written and read with."""

    layer: int
    query: Tensor  # [batch, time, key heads, channels]
    key: Tensor  # [batch, time, key heads, channels]
    output: Tensor  # [batch, time, value heads, value channels]
    kernel: str = ""  # the name it was called by
    arguments: Mapping[str, Any] = field(default_factory=dict)  # all of them, by name


@dataclass(frozen=True, eq=False)
class MixerInput:
    """What a layer's projections saw."""

    layer: int
    hidden: Tensor  # [batch, time, hidden]


@dataclass(frozen=True, eq=False)
class Readout:
    """What a layer's output projection is given, the state's answer behind norm and gate, and what
    it gives."""

    layer: int
    values: Tensor  # [batch, time, value heads x value channels]
    output: Tensor  # [batch, time, hidden], less its bias


@contextmanager
def hook_kernels(
    live: LiveModel,
    on_call: Callable[[KernelCall], None],
    on_input: Callable[[MixerInput], None] | None = None,
    on_readout: Callable[[Readout], None] | None = None,
    kept_keys: Mapping[int, Tensor] | None = None,
    kept_values: Mapping[int, Tensor] | None = None,
    layers: Iterable[int] | None = None,
) -> Iterator[None]:
    """Within, every kernel call of the model is reported; on leaving, no layer may be missing.

    With `only` (kept channels [key heads, keep] for each layer) the kernels read and write as if
    the other channels were not there; with `only_values` ([value heads, keep]) they give as if, and
    the output norm takes its mean over the kept ones. Where `layers` are given, only those are
    expected to run.
    """
    checkpoint = live.checkpoint
    recorder = _Recorder(checkpoint, on_call, on_input, kept_keys or {}, kept_values or {})
    with ExitStack() as stack:
        if kept_values:
            stack.enter_context(_rescale_readouts(live, kept_values))
        if on_readout is not None:
            stack.enter_context(_hook_readouts(live, on_readout, layers))
        for layer, module in live.mixers.items():
            handle = module.register_forward_pre_hook(
                functools.partial(recorder.on_mixer_start, layer), with_kwargs=True
            )
            stack.callback(handle.remove)
        stack.enter_context(wrapped_kernels(live, recorder.wrap))
        yield
    expected = checkpoint.geometry.layers if layers is None else layers
    missing = sorted(set(expected) - recorder.called_layers)
    if missing:
        raise StatetrimError(
            f"layers {missing[:5]} never called a recurrence kernel that statetrim knows, so "
            f"nothing was recorded for them"
        )


@contextmanager
def wrapped_kernels(
    live: LiveModel, wrap: Callable[[str, Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within, the mixers call `wrap(name, kernel)` in place of every kernel the family names."""
    with ExitStack() as stack:
        for modeling_module in {
            sys.modules[type(module).__module__] for module in live.mixers.values()
        }:
            names = [
                name for name in live.checkpoint.family.kernels if hasattr(modeling_module, name)
            ]
            if not names:
                raise StatetrimError(
                    f"{modeling_module.__name__} calls none of the kernels its family names"
                )
            for name in names:
                kernel = getattr(modeling_module, name)
                stack.callback(setattr, modeling_module, name, kernel)
                setattr(modeling_module, name, wrap(name, kernel))
        yield


@contextmanager
def _hook_readouts(
    live: LiveModel, on_readout: Callable[[Readout], None], layers: Iterable[int] | None
) -> Iterator[None]:
    called_layers: set[int] = set()

    def record(layer: int, module: nn.Module, args: Any, output: Tensor) -> None:
        called_layers.add(layer)
        on_readout(Readout(layer, args[0].detach(), without_bias(module, output)))

    with ExitStack() as stack:
        for layer, module in live.output_projections.items():
            hook = module.register_forward_hook(functools.partial(record, layer))
            stack.callback(hook.remove)
        yield
    expected = live.checkpoint.geometry.layers if layers is None else layers
    missing = sorted(set(expected) - called_layers)
    if missing:
        raise StatetrimError(
            f"layers {missing[:5]} never called their output projection, so nothing was recorded "
            f"for their values"
        )


def without_bias(projection: nn.Module, output: Tensor) -> Tensor:
    """What a linear map gives for its input alone."""
    bias = getattr(projection, "bias", None)
    return output.detach() if bias is None else (output - bias).detach()


@contextmanager
def _rescale_readouts(live: LiveModel, kept_values: Mapping[int, Tensor]) -> Iterator[None]:
    """Undo behind the norm what `_Recorder` does before it.

    The norm divides by the width it has. What goes in is larger by the root of that width over the
    kept one, so that its mean square is that of the kept channels; what comes out is larger too.
    """
    with ExitStack() as stack:
        for layer, module in live.output_projections.items():
            if layer in kept_values:
                width = live.checkpoint.geometry.for_layer(layer).head_v_dim
                factor = (kept_values[layer].shape[1] / width) ** 0.5
                hook = module.register_forward_pre_hook(
                    lambda _, args, factor=factor: (args[0] * factor, *args[1:])
                )
                stack.callback(hook.remove)
        yield


class _Recorder:
    """Knows which layer is running, and hands on what its kernel is given."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        on_call: Callable[[KernelCall], None],
        on_input: Callable[[MixerInput], None] | None,
        kept_keys: Mapping[int, Tensor],
        kept_values: Mapping[int, Tensor],
    ) -> None:
        self.family, self.geometry = checkpoint.family, checkpoint.geometry
        self.kept_keys, self.kept_values = kept_keys, kept_values
        self.on_call, self.on_input = on_call, on_input
        self.layer: int | None = None
        self.called_layers: set[int] = set()

    def on_mixer_start(self, layer: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.layer = layer
        if self.on_input is not None:
            hidden = args[0] if args else kwargs["hidden_states"]
            self.on_input(MixerInput(layer, hidden.detach()))

    def wrap(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        signature = kernel_signature(kernel)
        positional_names, defaults = _positional_and_defaults(signature)
        positional_names = positional_names or self.family.positional_arguments.get(name, ())

        def record_call(*args: Any, **kwargs: Any) -> Any:
            arguments = dict(zip(positional_names, args, strict=False)) | kwargs
            query_name, key_name = self._argument_names(name, arguments)
            if self.layer in self.kept_keys:
                arguments |= {
                    argument: self._mask_channels(arguments[argument])
                    for argument in (query_name, key_name)
                }
                # As they were handed over: the kernel behind a wrapper may order them otherwise.
                args = (
                    *(arguments[n] for n in positional_names[: len(args)]),
                    *args[len(positional_names) :],
                )
                kwargs = {n: arguments[n] for n in kwargs}
            result = kernel(*args, **kwargs)
            if self.layer in self.kept_keys and self.family.scales_queries:
                result = _scale_output(result, self._scale(self.kept_keys, self._width("key")))
            if self.layer in self.kept_values:
                width = self._width("value")
                mask = _kept_mask(self.kept_values[self.layer], width)  # type: ignore[index]
                result = _scale_output(result, mask * self._scale(self.kept_values, width))
            output = result[0] if isinstance(result, tuple) else result
            self._report(
                name,
                _detach_tensors(defaults | arguments),
                arguments[query_name],
                arguments[key_name],
                output,
            )
            return result

        record_call.__signature__ = signature  # type: ignore[attr-defined]
        return record_call

    def _argument_names(self, kernel: str, arguments: Mapping[str, Any]) -> tuple[str, str]:
        for pair in self.family.query_and_key:
            if set(pair) <= set(arguments):
                return pair
        raise StatetrimError(
            f"kernel {kernel} is given {', '.join(arguments) or 'no argument by name'}: family "
            f"{type(self.family).__name__} must name its query and key in 'query_and_key'"
        )

    def _report(
        self, kernel: str, arguments: Mapping[str, Any], query: Tensor, key: Tensor, output: Tensor
    ) -> None:
        assert self.layer is not None, "a kernel ran outside every mixer"
        self.called_layers.add(self.layer)
        with torch.no_grad():
            self.on_call(
                KernelCall(
                    self.layer,
                    self._unrepeat_key_heads(query.detach()),
                    self._unrepeat_key_heads(key.detach()),
                    output.detach(),
                    kernel,
                    arguments,
                )
            )

    def _mask_channels(self, x: Tensor) -> Tensor:
        """x [..., heads, channels], in which transformers may have repeated the key heads."""
        mask = _kept_mask(self.kept_keys[self.layer], x.shape[-1]).to(x)  # type: ignore[index]
        return x * mask.repeat_interleave(x.shape[-2] // len(mask), dim=0)

    def _width(self, axis: Axis) -> int:
        """Of the layer that is running."""
        assert self.layer is not None
        return self.geometry.for_layer(self.layer).width(axis)

    def _scale(self, kept: Mapping[int, Tensor], width: int) -> float:
        """Of keys: the kernel divided by the root of the width it saw, not of the kept one. Of
        values: see `_shrunk_readouts`."""
        return float((width / kept[self.layer].shape[1]) ** 0.5)  # type: ignore[index]

    def _unrepeat_key_heads(self, x: Tensor) -> Tensor:
        """transformers repeats q and k for every value head before the kernel; fla does not."""
        repeat = x.shape[2] // self.geometry.num_k_heads
        return x[:, :, ::repeat]


def _kept_mask(kept: Tensor, channels: int) -> Tensor:
    """Ones [heads, channels] at `kept` [heads, keep]."""
    return torch.zeros(len(kept), channels).scatter_(1, kept, 1.0)


def _scale_output(result: Any, factor: Tensor | float) -> Any:
    """A kernel's output, alone or before its final state, times `factor`."""
    output, *states = result if isinstance(result, tuple) else (result,)
    output = output * (factor.to(output) if isinstance(factor, Tensor) else factor)
    return (output, *states) if isinstance(result, tuple) else output


def kernel_signature(kernel: Callable[..., Any]) -> inspect.Signature:
    """With the `kernels` package a kernel is a module: its `__call__` says nothing, its `forward`
    has the signature of the function it stands for."""
    return inspect.signature(kernel.forward if isinstance(kernel, nn.Module) else kernel)


def _positional_and_defaults(
    signature: inspect.Signature,
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The names of what may be handed over by its place, and every default."""
    parameters = signature.parameters.values()
    positional_kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return tuple(p.name for p in parameters if p.kind in positional_kinds), defaults


def _detach_tensors(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors without their graph."""
    return {n: x.detach() if isinstance(x, Tensor) else x for n, x in arguments.items()}
