"""Run a model, and show what each of its layers sees to the same layer of another model."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import StatetrimError
from ..runtime.kernel_hooks import without_bias
from ..runtime.live import LiveModel
from ..runtime.mixers import MixerCall, hook_mixers
from ..storage.checkpoint import Checkpoint


@dataclass(frozen=True, eq=False)
class Pair:
    """One layer on the same input in both models."""

    layer: int
    target: Tensor  # [batch, time, hidden]: what the original's output projection gives, less bias
    values: Tensor  # [batch, time, value heads x value channels]: what the other's is given


@contextmanager
def hook_pairs(
    original: LiveModel, small: LiveModel, on_pair: Callable[[Pair], None]
) -> Iterator[None]:
    """Within, what a layer of `original` is given goes through the same layer of `small` too."""
    check_cut_from(original.checkpoint, small.checkpoint)
    seen: dict[str, Tensor] = {}

    def keep_target(module: Any, args: Any, output: Tensor) -> None:
        seen["target"] = without_bias(module, output)

    def keep_values(module: nn.Module, args: Any) -> None:
        seen["values"] = args[0].detach()

    def follow(call: MixerCall) -> None:
        call.repeat(small.mixers[call.layer])
        values = seen.pop("values")  # the two models may be on different cards
        on_pair(Pair(call.layer, seen.pop("target").to(values.device), values))

    with ExitStack() as stack:
        for module in original.output_projections.values():
            stack.callback(module.register_forward_hook(keep_target).remove)
        for module in small.output_projections.values():
            stack.callback(module.register_forward_pre_hook(keep_values).remove)
        stack.enter_context(hook_mixers(original.mixers, follow))
        yield


def check_cut_from(before: Checkpoint, after: Checkpoint) -> None:
    """Whether one may have been cut from the other."""
    old, new = before.geometry, after.geometry
    if (
        before.config.get("model_type") != after.config.get("model_type")
        or old.layers != new.layers
        or new.num_k_heads > old.num_k_heads
        or new.num_v_heads > old.num_v_heads
        or any(
            narrow > wide
            for layer in old.layers
            for wide, narrow in zip(old.shapes[layer], new.shapes[layer], strict=True)
        )
    ):
        raise StatetrimError(
            f"{after.path} was not cut from {before.path}: their layers or heads differ"
        )
