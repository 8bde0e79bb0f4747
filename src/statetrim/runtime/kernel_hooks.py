"""Hooks on the calls of the recurrence kernel, by replacing it in the modelling module.

Module hooks would not work: fused convolutions bypass them silently. Every family calls a kernel,
with q and k after convolution and SiLU and before the L2 norm.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..artifacts.plan import Plan
from ..cut.rows import over_all_heads
from ..cut.shape import Kept
from ..errors import StatetrimError
from ..families.contract import Family
from ..storage.checkpoint import Checkpoint
from .live import LiveModel


@dataclass(frozen=True, eq=False)
class KernelCall:
    """One call of a layer's kernel: its inputs and its output."""

    layer: int
    query: Tensor  # [batch, time, query heads, channels]; several may read one key head
    key: Tensor  # [batch, time, key heads, channels]
    output: Tensor  # [batch, time, value heads, value channels]
    kernel: str = ""  # name of the called function
    arguments: Mapping[str, Any] = field(default_factory=dict)  # all, by name, with defaults

    @property
    def queries_by_key_head(self) -> Tensor:
        """[batch x query heads of a key head, time, key heads, channels]"""
        grouped = torch.unflatten(self.query, 2, (self.key.shape[2], -1))
        return grouped.movedim(3, 1).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class MixerInput:
    """The input of one layer's mixer."""

    layer: int
    hidden: Tensor  # [batch, time, hidden]


@dataclass(frozen=True, eq=False)
class Readout:
    """Input and output of one layer's output projection; the input is the kernel's output after
    norm and gate."""

    layer: int
    values: Tensor  # [batch, time, value heads x value channels]
    output: Tensor  # [batch, time, hidden], without the bias


@contextmanager
def hook_kernels(
    live: LiveModel,
    on_call: Callable[[KernelCall], None],
    on_input: Callable[[MixerInput], None] | None = None,
    on_readout: Callable[[Readout], None] | None = None,
    kept: Mapping[int, Kept] | None = None,
    layers: Iterable[int] | None = None,
) -> Iterator[None]:
    """Within, every kernel call of the model is passed to `on_call`, every input of a
    mixer to `on_input`, and every call of an output projection to `on_readout`.

    All but what `kept` lists by layer is masked. Of "key", channels of q and k are masked, and the
    output is scaled as by a kernel of the kept width. Of "value", those of the kernel's output are,
    and the output norm takes its mean over the kept channels. Of "head", the input of the output
    projection is, or the kernel's output as for "value" if the norm runs over heads. Callbacks get
    masked tensors. Raises StatetrimError on exit if one of `layers` (default: all) called no
    kernel, or with `on_readout` no output projection.
    """
    geometry = live.checkpoint.geometry
    kept = {layer: over_all_heads(of_layer, geometry) for layer, of_layer in (kept or {}).items()}
    recorder = _Recorder(live.checkpoint, kept, on_call, on_input, on_readout)
    with ExitStack() as stack:
        for layer, of_layer in kept.items():
            stack.enter_context(_scale_readout(live, layer, of_layer))
        if on_readout is not None:
            for layer, module in live.output_projections.items():
                after_projection = functools.partial(recorder.on_projection_end, layer)
                stack.enter_context(module.register_forward_hook(after_projection))
        for layer, module in live.mixers.items():
            hook = functools.partial(recorder.on_mixer_start, layer)
            stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
        stack.enter_context(wrapped_kernels(live, recorder.wrap))
        yield
    what = "a recurrence kernel that statetrim knows"
    _require_calls(live, layers, recorder.called_layers, what)
    if on_readout is not None:
        _require_calls(live, layers, recorder.read_layers, "their output projection")


def masked(live: LiveModel, plan: Plan) -> AbstractContextManager[None]:
    """Within, the model gives the outputs of the cut that `plan` makes. Other models of the same
    modelling module must not run."""
    kept = {layer: plan.kept_in_layer(layer) for layer in plan.layers}
    return hook_kernels(live, lambda call: None, kept=kept)


Wrap = Callable[[str, Callable[..., Any], inspect.Signature], Any]
"""(name, kernel, its signature) -> what is called in place of it, and gets the same signature."""


@contextmanager
def wrapped_kernels(live: LiveModel, wrap: Wrap) -> Iterator[None]:
    """Within, the mixers call what `wrap` returns in place of every kernel the family names. It is
    set in the modelling module, so other models of that module call it too. Refuses a module that
    has none of these kernels."""
    kernels = live.checkpoint.family.kernels
    modeling_modules = {sys.modules[type(mixer).__module__] for mixer in live.mixers.values()}
    with ExitStack() as stack:
        for modeling_module in modeling_modules:
            names = [name for name in kernels if hasattr(modeling_module, name)]
            if not names:
                raise StatetrimError(
                    f"{modeling_module.__name__} calls none of the kernels its family names"
                )
            for name in names:
                kernel = getattr(modeling_module, name)
                # With the `kernels` package a kernel is a module, whose `forward` has the signature
                # of the function it replaces.
                is_module = isinstance(kernel, nn.Module)
                signature = inspect.signature(kernel.forward if is_module else kernel)
                wrapper = wrap(name, kernel, signature)
                wrapper.__signature__ = signature
                stack.callback(setattr, modeling_module, name, kernel)
                setattr(modeling_module, name, wrapper)
        yield


def _require_calls(
    live: LiveModel, layers: Iterable[int] | None, called: set[int], what: str
) -> None:
    """Refuse if one of `layers` (None: all linear ones) is not among the `called`."""
    expected = live.checkpoint.geometry.layers if layers is None else layers
    missing = sorted(set(expected) - called)
    if missing:
        raise StatetrimError(
            f"layers {missing[:5]} never called {what}, so nothing was recorded for them"
        )


def without_bias(projection: nn.Module, output: Tensor) -> Tensor:
    """The output of a linear projection minus its bias, detached."""
    bias = getattr(projection, "bias", None)
    return output.detach() if bias is None else (output - bias).detach()


def _scale_readout(live: LiveModel, layer: int, kept: Kept) -> AbstractContextManager[Any]:
    """Within, a layer's output projection gets zeros for all heads but the `kept`; and the scale
    that `_Recorder` applies before the output norm is undone after it.

    The norm averages over the full width. Its input is scaled by sqrt(full width / kept width), so
    that the mean square is that of the kept channels; its output must be scaled back.
    """
    if not kept.keys() & {"value", "head"}:
        return nullcontext()
    geometry = live.checkpoint.geometry.for_layer(layer)
    factors = torch.ones(geometry.num_v_heads, 1)
    if "value" in kept:
        factors *= (kept["value"].shape[1] / geometry.head_v_dim) ** 0.5
    if "head" in kept and live.checkpoint.family.norm_over_heads:
        factors *= (kept["head"].numel() / geometry.num_v_heads) ** 0.5
    if "head" in kept:
        removed = torch.ones(len(factors), dtype=torch.bool)
        removed[kept["head"].flatten()] = False
        factors[removed] = 0.0

    def scale_input(module: nn.Module, args: Any) -> tuple[Any, ...]:
        scaled = args[0].unflatten(-1, (len(factors), -1)) * factors.to(args[0])
        return scaled.flatten(-2), *args[1:]

    return live.output_projections[layer].register_forward_pre_hook(scale_input)


@dataclass(eq=False)
class _Recorder:
    """Tracks which layer is running, masks its channels, and reports what is called."""

    checkpoint: Checkpoint
    kept: Mapping[int, Kept]
    on_call: Callable[[KernelCall], None]
    on_input: Callable[[MixerInput], None] | None = None
    on_readout: Callable[[Readout], None] | None = None
    layer: int | None = None
    called_layers: set[int] = field(default_factory=set)
    read_layers: set[int] = field(default_factory=set)

    def on_mixer_start(self, layer: int, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Hook before a mixer's call: notes the layer, and passes its input to `on_input`."""
        self.layer = layer
        if self.on_input is not None:
            hidden = args[0] if args else kwargs["hidden_states"]
            self.on_input(MixerInput(layer, hidden.detach()))

    def on_projection_end(self, layer: int, module: nn.Module, args: Any, output: Tensor) -> None:
        """Hook after an output projection's call."""
        assert self.on_readout is not None
        self.read_layers.add(layer)
        self.on_readout(Readout(layer, args[0].detach(), without_bias(module, output)))

    def wrap(self, name: str, kernel: Callable[..., Any], signature: inspect.Signature) -> Any:
        """`kernel` with masked arguments and output, which reports each of its calls."""
        family, geometry = self.checkpoint.family, self.checkpoint.geometry
        parameters = signature.parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional_names = tuple(p.name for p in parameters if p.kind in positional)
        positional_names = positional_names or family.positional_arguments.get(name, ())
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}

        def record_call(*args: Any, **kwargs: Any) -> Any:
            arguments = dict(zip(positional_names, args, strict=False)) | kwargs
            query_name, key_name = query_and_key_names(family, name, arguments)
            assert self.layer is not None, "a kernel ran outside every mixer"
            shape = geometry.for_layer(self.layer)
            kept = self.kept.get(self.layer, {})
            if "key" in kept:
                for argument in (query_name, key_name, *family.other_keys):
                    if argument in arguments:
                        x = arguments[argument]
                        arguments[argument] = x * _kept_mask(kept["key"], *x.shape[-2:]).to(x)
                # Keywords stay keywords: a wrapped kernel may have another order of parameters.
                changed = list(args)
                for index, argument in enumerate(positional_names[: len(args)]):
                    changed[index] = arguments[argument]
                args, kwargs = tuple(changed), {n: arguments[n] for n in kwargs}
            result = kernel(*args, **kwargs)
            if "key" in kept and family.scales_queries:
                # It divides queries by the root of the full width.
                result = _scale_output(result, (shape.head_k_dim / kept["key"].shape[1]) ** 0.5)
            if "value" in kept:
                mask = _kept_mask(kept["value"], shape.num_v_heads, shape.head_v_dim)
                scale = (shape.head_v_dim / kept["value"].shape[1]) ** 0.5  # see _scale_readout
                result = _scale_output(result, mask * scale)
            if "head" in kept and family.norm_over_heads:
                of_heads = torch.zeros(shape.num_v_heads, 1)
                of_heads[kept["head"].flatten()] = (shape.num_v_heads / kept["head"].numel()) ** 0.5
                result = _scale_output(result, of_heads)
            output = result[0] if isinstance(result, tuple) else result
            query, key = arguments[query_name].detach(), arguments[key_name].detach()
            if shape.shared_values == 1:  # else each query head has queries of its own (GLA)
                query = self._unrepeat_key_heads(query)
            reported = {}
            for argument, x in (defaults | arguments).items():
                reported[argument] = x.detach() if isinstance(x, Tensor) else x
            self.called_layers.add(self.layer)
            key = self._unrepeat_key_heads(key)
            with torch.no_grad():
                self.on_call(KernelCall(self.layer, query, key, output.detach(), name, reported))
            return result

        return record_call

    def _unrepeat_key_heads(self, x: Tensor) -> Tensor:
        """One copy of each key head: transformers repeats q and k for every value head."""
        repeat = x.shape[2] // self.checkpoint.geometry.num_k_heads
        return x[:, :, ::repeat]


def _kept_mask(kept: Tensor, heads: int, channels: int) -> Tensor:
    """Mask [heads, channels] that is 1 at the indices `kept` [distinct heads, keep]; each of these
    heads may be repeated."""
    mask = torch.zeros(len(kept), channels).scatter_(1, kept, 1.0)
    return mask.repeat_interleave(heads // len(kept), dim=0)


def _scale_output(result: Any, factor: Tensor | float) -> Any:
    """Multiply a kernel's output by `factor`; a final state next to it is unchanged."""
    output, *states = result if isinstance(result, tuple) else (result,)
    output = output * (factor.to(output) if isinstance(factor, Tensor) else factor)
    return (output, *states) if isinstance(result, tuple) else output


def query_and_key_names(
    family: Family, kernel: str, arguments: Mapping[str, Any]
) -> tuple[str, str]:
    """The first pair of the family's `query_and_key` that a kernel's arguments have."""
    for pair in family.query_and_key:
        if set(pair) <= set(arguments):
            return pair
    raise StatetrimError(
        f"kernel {kernel} is given {', '.join(arguments) or 'no argument by name'}: family "
        f"{type(family).__name__} must name its query and key in 'query_and_key'"
    )
