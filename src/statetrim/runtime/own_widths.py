"""A model whose layers differ in width: each is built from a config of its own.

Stock modelling code builds every layer from one config. While such a model is made, the class of
its layers is given, for each layer, the config of a stock model that has this layer's shape
throughout; nothing else of the code changes.
"""

import copy
import functools
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import StatetrimError
from ..families.contract import LAYER_WIDTHS_FIELD, Config
from ..geometry import Axis, kept_masks
from ..storage.checkpoint import Checkpoint
from .mixers import find_mixers
from .stored_weights import empty_model


@contextmanager
def own_widths(checkpoint: Checkpoint, shown: Path) -> Iterator[None]:
    """Within, models made of the directory `shown` have the widths that the checkpoint says."""
    with ExitStack() as stack:
        if checkpoint.geometry.widths:
            for builder in _builders(checkpoint, shown):
                original = builder.__init__
                stack.callback(setattr, builder, "__init__", original)
                builder.__init__ = _with_own_config(original, checkpoint)  # type: ignore[method-assign]
        yield


def fit_buffers(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Narrow what the model computed for all its mixers by the widest of them; such a buffer has
    one number for all rows of a kind, so it does not matter which of them go."""
    geometry = checkpoint.geometry
    if not geometry.widths or not checkpoint.family.row_buffers:
        return
    widest = checkpoint.family.channel_rows(checkpoint.config, geometry.resized())
    for layer, mixer in find_mixers(module, checkpoint).items():
        own = geometry.for_layer(layer)
        axes: tuple[Axis, ...] = ("key", "value")
        kept = {a: torch.arange(own.width(a)).repeat(own.heads(a), 1) for a in axes}
        buffers = checkpoint.family.row_buffers
        for name, tensor in ((n, t) for n, t in buffers.items() if n in mixer._buffers):
            rows = kept_masks([claim for claim in widest if claim.tensor == tensor], kept)[0]
            wide = mixer.get_buffer(name)  # [1, 1, rows]
            mixer._buffers[name] = wide[..., rows.to(wide.device)]


def _builders(checkpoint: Checkpoint, shown: Path) -> set[type[nn.Module]]:
    """The classes that make a mixer of a config and the number of a layer."""
    module = empty_model(checkpoint, shown)
    parts = dict(module.named_modules())
    names = {id(part): name for name, part in parts.items()}
    found = set()
    for mixer in find_mixers(module, checkpoint).values():
        pieces = names[id(mixer)].split(".")
        above = [".".join(pieces[:length]) for length in range(len(pieces), 0, -1)]
        classes = (type(parts[name]) for name in above)
        builder = next((each for each in classes if _takes_a_config(each)), None)
        if builder is None:
            raise StatetrimError(
                f"{type(mixer).__name__} is not made of a config and a layer's number, so its "
                f"layers cannot differ in width"
            )
        found.add(builder)
    return found


def _takes_a_config(part: type[nn.Module]) -> bool:
    return {"config", "layer_idx"} <= set(inspect.signature(part.__init__).parameters)


def _with_own_config(original: Any, checkpoint: Checkpoint) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs)
        layer, config = given.arguments["layer_idx"], given.arguments["config"]
        if layer in checkpoint.geometry.layers:
            given.arguments["config"] = _own_config(config, checkpoint, layer)
        original(*given.args, **given.kwargs)

    return init


def _own_config(config: Any, checkpoint: Checkpoint, layer: int) -> Any:
    """A copy of the live config with what a stock config of this layer's shape says otherwise.

    The config's own class reads it, because some fields are computed when one is made.
    """
    stored = [_section(x, config) for x in (checkpoint.config, checkpoint.layer_config(layer))]
    widest, own = (vars(type(config).from_dict(config.to_dict() | part)) for part in _said(*stored))
    result = copy.copy(config)
    vars(result).update({name: x for name, x in own.items() if x != widest.get(name)})
    return result


def _said(widest: Config, own: Config) -> tuple[Config, Config]:
    """What two configs say of the fields in which they differ."""
    names = {name for name in widest | own if widest.get(name) != own.get(name)} - {
        LAYER_WIDTHS_FIELD
    }
    return {n: widest[n] for n in names & {*widest}}, {n: own[n] for n in names & {*own}}


def _section(stored: Config, config: Any) -> Config:
    """The part of a config.json that the live config was made of."""
    text = stored.get("text_config")
    return (
        text if isinstance(text, dict) and text.get("model_type") == config.model_type else stored
    )
