"""Build a model whose layers differ in width, each layer from its own config.

Stock modelling code builds every layer from one config. While the model is built, the constructor
of its layers gets, for each layer, the config of a stock model that has this layer's shape in all
layers; the rest of the modelling code is unchanged.
"""

import copy
import functools
import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..cut.rows import kept_masks
from ..cut.shape import CHANNEL_AXES, Axis
from ..errors import StatetrimError
from ..families.contract import LAYER_WIDTHS_FIELD, Config, text_config
from ..storage.checkpoint import Checkpoint
from .live import find_mixers
from .stored_weights import empty_model


@contextmanager
def build_with_layer_widths(checkpoint: Checkpoint, staging_directory: Path) -> Iterator[None]:
    """Within, a model built from `staging_directory` has the checkpoint's widths by layer: the
    constructor of its mixer or layer class is replaced. Changes nothing if all layers have one
    shape; refuses a class that takes no config and layer index."""
    with ExitStack() as stack:
        if checkpoint.geometry.widths:
            for builder in _mixer_builders(checkpoint, staging_directory):
                original = builder.__init__
                stack.callback(setattr, builder, "__init__", original)
                builder.__init__ = _init_with_layer_config(original, checkpoint)  # type: ignore[method-assign]
        yield


def narrow_buffers(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Cut the mixers' buffers in `family.row_buffers`, computed for the widest layer, to each
    layer's width, in place. Does nothing if all layers have one shape. In such a buffer all rows of
    one role have the same value, so any of them may be kept."""
    geometry = checkpoint.geometry
    if not geometry.widths or not checkpoint.family.row_buffers:
        return
    widest = checkpoint.family.channel_rows(checkpoint.config, geometry.resized())
    for layer, mixer in find_mixers(module, checkpoint).items():
        layer_geometry = geometry.for_layer(layer)
        kept = dict[Axis, Tensor]()
        for axis in CHANNEL_AXES:
            channels = torch.arange(layer_geometry.width(axis))
            kept[axis] = channels.repeat(layer_geometry.heads(axis), 1)
        for name, tensor in checkpoint.family.row_buffers.items():
            if name in mixer._buffers:
                mask = kept_masks([entry for entry in widest if entry.tensor == tensor], kept)[0]
                widest_buffer = mixer.get_buffer(name)  # [1, 1, rows]
                mixer._buffers[name] = widest_buffer[..., mask.to(widest_buffer.device)]


def _mixer_builders(checkpoint: Checkpoint, staging_directory: Path) -> set[type[nn.Module]]:
    """For every mixer its class, or that of a module around it, that takes config and layer."""
    module = empty_model(checkpoint, staging_directory)
    modules = dict(module.named_modules())
    names = {id(submodule): name for name, submodule in modules.items()}
    builders = set()
    for mixer in find_mixers(module, checkpoint).values():
        name = names[id(mixer)]
        while name and not _takes_config_and_layer(type(modules[name])):
            name = name.rpartition(".")[0]
        if not name:
            raise StatetrimError(
                f"{type(mixer).__name__} is not made of a config and a layer's number, so its "
                f"layers cannot differ in width"
            )
        builders.add(type(modules[name]))
    return builders


def _takes_config_and_layer(module_class: type[nn.Module]) -> bool:
    return {"config", "layer_idx"} <= set(inspect.signature(module_class.__init__).parameters)


def _init_with_layer_config(original: Any, checkpoint: Checkpoint) -> Any:
    """A constructor that calls `original` with the config of its own linear layer."""
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
    """A copy of the live config, with the fields of a stock config of this layer's shape; both are
    parsed by the config's own class, because it computes some fields."""
    widest = checkpoint.text_config
    own = text_config(checkpoint.layer_config(layer))
    parse, fields = type(config).from_dict, config.to_dict()
    parsed_widest = vars(parse(fields | _differing_fields(widest, own)))
    parsed_own = vars(parse(fields | _differing_fields(own, widest)))
    result = copy.copy(config)
    vars(result).update(_differing_fields(parsed_own, parsed_widest))
    return result


def _differing_fields(config: Config, other: Config) -> Config:
    """The fields of `config` that `other` lacks or has with another value."""
    differing = {name: value for name, value in config.items() if value != other.get(name)}
    differing.pop(LAYER_WIDTHS_FIELD, None)
    return differing
