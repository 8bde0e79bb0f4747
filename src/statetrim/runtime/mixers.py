"""The mixers of a loaded model, and hooks on their calls."""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint


def find_mixers(module: nn.Module, checkpoint: Checkpoint) -> dict[int, nn.Module]:
    """Layer -> mixer, for every linear layer; refuses a model that lacks one."""
    mixer_names = {
        template.partition("{layer}.")[2] for template in checkpoint.family.mixer_prefixes
    }
    pattern = re.compile(rf"(?:.*\.)?layers\.(\d+)\.(?:{'|'.join(map(re.escape, mixer_names))})")
    mixers: dict[int, nn.Module] = {}
    for name, submodule in module.named_modules():
        match = pattern.fullmatch(name)
        if match and int(match.group(1)) in checkpoint.geometry.layers:
            mixers[int(match.group(1))] = submodule
    missing = sorted(set(checkpoint.geometry.layers) - set(mixers))
    if missing:
        raise StatetrimError(f"the live model has no mixer for layers {missing[:5]}")
    return mixers


@dataclass(frozen=True, eq=False)
class MixerCall:
    """Arguments and output of one call of a mixer."""

    layer: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Tensor  # [batch, time, hidden]

    def repeat(self, mixer: nn.Module) -> Tensor:
        """Call `mixer` with these arguments, moved to its device; returns its output [batch, time,
        hidden] there. A mixer on `meta`, which loads its weights when called, gets them unmoved."""
        device = next(mixer.parameters()).device
        loaded_on_call = device.type == "meta"
        if loaded_on_call or device == self.output.device:
            return output_hidden_states(mixer(*self.args, **self.kwargs))
        args, kwargs = tree_map(
            lambda x: x.to(device) if isinstance(x, Tensor) else x, (self.args, dict(self.kwargs))
        )
        return output_hidden_states(mixer(*args, **kwargs))


@contextmanager
def hook_mixers(
    modules: Mapping[int, nn.Module], on_call: Callable[[MixerCall], None]
) -> Iterator[None]:
    """Within, every call of these mixers is passed to `on_call` when it returns."""

    def report(layer: int, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        on_call(MixerCall(layer, args, kwargs, output_hidden_states(output)))

    with ExitStack() as stack:
        for layer, module in modules.items():
            hook = functools.partial(report, layer)
            stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def output_hidden_states(output: Any) -> Tensor:
    """The hidden states in a module's output: a bare tensor, or the first of a tuple."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden
