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
    original: LiveModel, cut: LiveModel, on_pair: Callable[[Pair], None]
) -> Iterator[None]:
    """Within, what a layer of `original` is given goes through the same layer of `small` too."""
    check_cut_from(original.checkpoint, cut.checkpoint)
    captured: dict[str, Tensor] = {}

    def capture_target(module: Any, args: Any, output: Tensor) -> None:
        captured["target"] = without_bias(module, output)

    def capture_values(module: nn.Module, args: Any) -> None:
        captured["values"] = args[0].detach()

    def run_cut_layer(call: MixerCall) -> None:
        call.repeat(cut.mixers[call.layer])
        values = captured.pop("values")  # the two models may be on different cards
        on_pair(Pair(call.layer, captured.pop("target").to(values.device), values))

    with ExitStack() as stack:
        for module in original.output_projections.values():
            stack.callback(module.register_forward_hook(capture_target).remove)
        for module in cut.output_projections.values():
            stack.callback(module.register_forward_pre_hook(capture_values).remove)
        stack.enter_context(hook_mixers(original.mixers, run_cut_layer))
        yield


def check_cut_from(original: Checkpoint, cut: Checkpoint) -> None:
    """Whether one may have been cut from the other."""
    original_geometry, cut_geometry = original.geometry, cut.geometry
    if (
        original.config.get("model_type") != cut.config.get("model_type")
        or original_geometry.layers != cut_geometry.layers
        or cut_geometry.num_k_heads > original_geometry.num_k_heads
        or cut_geometry.num_v_heads > original_geometry.num_v_heads
        or any(
            narrow > wide
            for layer in original_geometry.layers
            for wide, narrow in zip(
                original_geometry.shapes[layer], cut_geometry.shapes[layer], strict=True
            )
        )
    ):
        raise StatetrimError(
            f"{cut.path} was not cut from {original.path}: their layers or heads differ"
        )
