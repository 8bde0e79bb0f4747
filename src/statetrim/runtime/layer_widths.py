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
def build_with_layer_widths(checkpoint: Checkpoint, staging_directory: Path) -> Iterator[None]:
    """Within, models made of the directory `shown` have the widths that the checkpoint says."""
    with ExitStack() as stack:
        if checkpoint.geometry.widths:
            for builder in _mixer_builders(checkpoint, staging_directory):
                original = builder.__init__
                stack.callback(setattr, builder, "__init__", original)
                builder.__init__ = _init_with_layer_config(original, checkpoint)  # type: ignore[method-assign]
        yield


def narrow_buffers(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Narrow what the model computed for all its mixers by the widest of them; such a buffer has
    one number for all rows of a kind, so it does not matter which of them go."""
    geometry = checkpoint.geometry
    if not geometry.widths or not checkpoint.family.row_buffers:
        return
    widest = checkpoint.family.channel_rows(checkpoint.config, geometry.resized())
    for layer, mixer in find_mixers(module, checkpoint).items():
        layer_geometry = geometry.for_layer(layer)
        axes: tuple[Axis, ...] = ("key", "value")
        kept = {
            axis: torch.arange(layer_geometry.width(axis)).repeat(layer_geometry.heads(axis), 1)
            for axis in axes
        }
        buffers = checkpoint.family.row_buffers
        for name, tensor in ((n, t) for n, t in buffers.items() if n in mixer._buffers):
            rows = kept_masks([claim for claim in widest if claim.tensor == tensor], kept)[0]
            widest_buffer = mixer.get_buffer(name)  # [1, 1, rows]
            mixer._buffers[name] = widest_buffer[..., rows.to(widest_buffer.device)]


def _mixer_builders(checkpoint: Checkpoint, staging_directory: Path) -> set[type[nn.Module]]:
    """The classes that make a mixer of a config and the number of a layer."""
    module = empty_model(checkpoint, staging_directory)
    modules = dict(module.named_modules())
    names = {id(submodule): name for name, submodule in modules.items()}
    builders = set()
    for mixer in find_mixers(module, checkpoint).values():
        path = names[id(mixer)].split(".")
        ancestor_names = [".".join(path[:length]) for length in range(len(path), 0, -1)]
        classes = (type(modules[name]) for name in ancestor_names)
        builder = next(
            (candidate for candidate in classes if _takes_config_and_layer(candidate)), None
        )
        if builder is None:
            raise StatetrimError(
                f"{type(mixer).__name__} is not made of a config and a layer's number, so its "
                f"layers cannot differ in width"
            )
        builders.add(builder)
    return builders


def _takes_config_and_layer(module_class: type[nn.Module]) -> bool:
    return {"config", "layer_idx"} <= set(inspect.signature(module_class.__init__).parameters)


def _init_with_layer_config(original: Any, checkpoint: Checkpoint) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        layer, config = bound.arguments["layer_idx"], bound.arguments["config"]
        if layer in checkpoint.geometry.layers:
            bound.arguments["config"] = _layer_config(config, checkpoint, layer)
        original(*bound.args, **bound.kwargs)

    return init


def _layer_config(config: Any, checkpoint: Checkpoint, layer: int) -> Any:
    """A copy of the live config with what a stock config of this layer's shape says otherwise.

    The config's own class reads it, because some fields are computed when one is made.
    """
    stored = [
        _matching_section(x, config) for x in (checkpoint.config, checkpoint.layer_config(layer))
    ]
    widest_fields, layer_fields = (
        vars(type(config).from_dict(config.to_dict() | fields))
        for fields in _differing_fields(*stored)
    )
    result = copy.copy(config)
    vars(result).update(
        {name: x for name, x in layer_fields.items() if x != widest_fields.get(name)}
    )
    return result


def _differing_fields(widest: Config, layer_config: Config) -> tuple[Config, Config]:
    """What two configs say of the fields in which they differ."""
    names = {
        name for name in widest | layer_config if widest.get(name) != layer_config.get(name)
    } - {LAYER_WIDTHS_FIELD}
    return {n: widest[n] for n in names & {*widest}}, {
        n: layer_config[n] for n in names & {*layer_config}
    }


def _matching_section(stored: Config, config: Any) -> Config:
    """The part of a config.json that the live config was made of."""
    text_config = stored.get("text_config")
    return (
        text_config
        if isinstance(text_config, dict) and text_config.get("model_type") == config.model_type
        else stored
    )
