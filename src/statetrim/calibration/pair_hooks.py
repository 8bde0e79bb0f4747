"""Run the original, and pass the input of each of its mixers to the same mixer of a cut."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..errors import StatetrimError
from ..runtime.kernel_hooks import without_bias
from ..runtime.live import LiveModel, MixerCall, hook_mixers
from ..storage.checkpoint import Checkpoint


@dataclass(frozen=True, eq=False)
class Pair:
    """One layer of both models on the same input."""

    layer: int
    target: Tensor  # [batch, time, hidden]: output of the original's output projection, no bias
    values: Tensor  # [batch, time, value heads x value channels]: input of the cut's


@contextmanager
def hook_pairs(
    original: LiveModel, cut: LiveModel, on_pair: Callable[[Pair], None]
) -> Iterator[None]:
    """A context in which every forward pass of a mixer of `original` also runs the mixer of `cut`
    on its input, and calls `on_pair`. Raises StatetrimError if `cut` cannot be cut from it."""
    check_cut_from(original.checkpoint, cut.checkpoint)
    captured: dict[str, Tensor] = {}

    def capture_target(module: Any, args: Any, output: Tensor) -> None:
        captured["target"] = without_bias(module, output)

    def capture_values(module: nn.Module, args: Any) -> None:
        captured["values"] = args[0].detach()

    def run_cut_layer(call: MixerCall) -> None:
        call.repeat(cut.mixers[call.layer])
        values = captured.pop("values")  # the two models may be on different GPUs
        on_pair(Pair(call.layer, captured.pop("target").to(values.device), values))

    with ExitStack() as stack:
        for module in original.output_projections.values():
            stack.callback(module.register_forward_hook(capture_target).remove)
        for module in cut.output_projections.values():
            stack.callback(module.register_forward_pre_hook(capture_values).remove)
        stack.enter_context(hook_mixers(original.mixers, run_cut_layer))
        yield


def check_cut_from(original: Checkpoint, cut: Checkpoint) -> None:
    """Raise StatetrimError unless `cut` may be a pruned `original`: the same model type and layers,
    and no more heads or channels in any of them."""
    before, after = original.geometry, cut.geometry
    fits = (
        original.config.get("model_type") == cut.config.get("model_type")
        and before.layers == after.layers
        and after.num_k_heads <= before.num_k_heads
        and after.num_v_heads <= before.num_v_heads
    )
    for layer in before.layers if fits else ():
        (old_keys, old_values), (keys, values) = before.shapes[layer], after.shapes[layer]
        fits = fits and keys <= old_keys and values <= old_values
    if not fits:
        raise StatetrimError(
            f"{cut.path} was not cut from {original.path}: their layers or heads differ"
        )
