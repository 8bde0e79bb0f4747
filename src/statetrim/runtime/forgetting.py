"""Take memory from a running model: states are emptied, and tokens attend to themselves alone.

The convolution state stays, and every token still reads what it wrote itself, so that only what a
layer remembers of earlier tokens is missing.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .kernel_hooks import wrapped_kernels
from .live import LiveModel

_MAX_STATE_NUMEL = 2**26  # in one kernel call; pieces of a sequence have a state each
_ATTENTION = "ALL_ATTENTION_FUNCTIONS"  # how modelling modules of transformers find theirs


@contextmanager
def emptied_states(live: LiveModel, layers: Collection[int], every: int) -> Iterator[None]:
    """Within, the states of `layers` are empty again after every `every` tokens."""
    widest = live.checkpoint.geometry
    state_numel = widest.num_v_heads * widest.head_k_dim * widest.head_v_dim
    rows_at_once = max(1, _MAX_STATE_NUMEL // state_numel)
    running: list[int] = []  # the layer whose mixer was called last

    def start(layer: int, module: nn.Module, args: Any) -> None:
        running[:] = [layer]

    def wrap(name: str, kernel: Callable[..., Any], signature: inspect.Signature) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if running[0] not in layers:
                return kernel(*args, **kwargs)
            if "chunk_size" in signature.parameters:  # a short piece is not padded to a full chunk
                usual = kwargs.get("chunk_size", signature.parameters["chunk_size"].default)
                if usual is not inspect.Parameter.empty:
                    kwargs["chunk_size"] = min(usual, 1 << (every - 1).bit_length())
            return _in_pieces(kernel, args, kwargs, every, rows_at_once)

        return call

    with ExitStack() as stack:
        for layer, mixer in live.mixers.items():
            hook = functools.partial(start, layer)
            stack.callback(mixer.register_forward_pre_hook(hook).remove)
        stack.enter_context(wrapped_kernels(live, wrap))
        yield


def _in_pieces(
    kernel: Callable[..., Any], args: Any, kwargs: Any, every: int, rows_at_once: int
) -> Any:
    """Call the kernel with pieces of `every` tokens as rows of a batch, at most `rows_at_once`;
    returns its output [batch, time, heads, channels], without a final state if it returns one."""
    values = (*args, *kwargs.values())
    batch, time = next(x for x in values if isinstance(x, Tensor)).shape[:2]
    padding = -time % every
    rows = batch * (time + padding) // every
    divided: dict[int, Tensor] = {}  # number of an argument -> [rows, every, ...]
    for number, x in enumerate(values):
        if isinstance(x, Tensor) and x.dim() > 2 and x.shape[:2] == (batch, time):
            padded = functional.pad(x, (0, 0) * (x.dim() - 2) + (0, padding))
            divided[number] = padded.reshape(rows, every, *x.shape[2:])
    outputs: list[Tensor] = []
    for start in range(0, rows, rows_at_once):
        some = list(values)
        for number, pieces in divided.items():
            some[number] = pieces[start : start + rows_at_once]
        by_name = dict(zip(kwargs, some[len(args) :], strict=True))
        result = kernel(*some[: len(args)], **by_name)
        outputs.append(result[0] if isinstance(result, tuple) else result)
    output = torch.cat(outputs).reshape(batch, time + padding, *outputs[0].shape[2:])[:, :time]
    return (output, None) if isinstance(result, tuple) else output


@contextmanager
def attention_calls(
    live: LiveModel,
    blind: Collection[int] = (),
    on_call: Callable[[int], None] = lambda layer: None,
) -> Iterator[None]:
    """Within, every token in the softmax layers `blind` attends to itself alone, and the number of
    every softmax layer is passed to `on_call` when it runs.

    Only layers whose attention is one of transformers' functions are seen."""
    layer_of: dict[nn.Module, int] = {}
    for number, layer in enumerate(live.decoder_layers):
        layer_of |= dict.fromkeys(layer.modules(), number)

    class Functions:
        def __init__(self, functions: Any) -> None:
            self.functions = functions

        def get_interface(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
            attention = self.functions.get_interface(name, default)

            def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any,
                       **kwargs: Any) -> Any:  # fmt: skip
                layer = layer_of.get(module)
                if layer is not None:
                    on_call(layer)
                if layer not in blind:
                    return attention(module, query, key, value, *args, **kwargs)
                of_queries = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
                return of_queries.transpose(1, 2), None

            return attend

    with ExitStack() as stack:
        for modelling in {sys.modules[type(module).__module__] for module in layer_of}:
            if hasattr(modelling, _ATTENTION):
                functions = getattr(modelling, _ATTENTION)
                stack.callback(setattr, modelling, _ATTENTION, functions)
                setattr(modelling, _ATTENTION, Functions(functions))
        yield
