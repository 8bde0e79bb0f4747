"""Run a model, and show what each of its layers sees to the same layer of another model."""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import StatetrimError
from ..runtime.kernel_hooks import mixers, output_projections
from ..storage.checkpoint import Checkpoint


@dataclass(frozen=True, eq=False)
class Pair:
    """One layer on the same input in both models."""

    layer: int
    target: Tensor  # [batch, time, hidden]: what the original's output projection gives, less bias
    values: Tensor  # [batch, time, value heads x value channels]: what the other's is given


@contextmanager
def shadow(
    original: nn.Module,
    before: Checkpoint,
    small: nn.Module,
    after: Checkpoint,
    on_pair: Callable[[Pair], None],
) -> Iterator[None]:
    """Within, every forward pass of `original` is shadowed layer by layer by those of `small`."""
    check_kin(before, after)
    followers = mixers(small, after)
    readers = output_projections(original, before), output_projections(small, after)
    seen: dict[str, Tensor] = {}

    def remember(module: Any, args: Any, output: Tensor) -> None:
        bias = getattr(module, "bias", None)
        seen["target"] = output.detach() if bias is None else (output - bias).detach()

    def listen(module: nn.Module, args: Any) -> None:
        seen["values"] = args[0].detach()

    def follow(layer: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        followers[layer](*args, **kwargs)
        on_pair(Pair(layer, seen.pop("target"), seen.pop("values")))

    with ExitStack() as stack:
        for layer, mixer in mixers(original, before).items():
            hooks = (
                readers[0][layer].register_forward_hook(remember),
                readers[1][layer].register_forward_pre_hook(listen),
                mixer.register_forward_hook(functools.partial(follow, layer), with_kwargs=True),
            )
            for hook in hooks:
                stack.callback(hook.remove)
        yield


def check_kin(before: Checkpoint, after: Checkpoint) -> None:
    """Whether one may have been cut from the other."""
    old, new = before.geometry, after.geometry
    if (
        before.config.get("model_type") != after.config.get("model_type")
        or (old.layers, old.num_k_heads, old.num_v_heads)
        != (new.layers, new.num_k_heads, new.num_v_heads)
        or old.head_k_dim < new.head_k_dim
        or old.head_v_dim < new.head_v_dim
    ):
        raise StatetrimError(
            f"{after.path} was not cut from {before.path}: their layers or heads differ"
        )
