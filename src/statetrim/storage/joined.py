"""Tensors that transformers joins when it loads a model, and splits in equal parts when it saves.

The parts need not be equal: OLMo-Hybrid's values are wider than its keys. What was saved again has
every row, in order, but some in the tensor before or after their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch

from ..families.contract import Config, Family, layer_config
from ..geometry import Geometry
from .safetensors_file import TensorInfo


@dataclass(frozen=True)
class Part:
    """Rows `start` to `start + size` of `names`, laid one after the other."""

    names: tuple[str, ...]
    start: int
    size: int


def saved_in_equal_parts(
    family: Family, config: Config, geometry: Geometry, tensors: Mapping[str, TensorInfo]
) -> dict[str, Part]:
    """Tensor name -> where its own rows lie; only tensors that lie in equal parts are listed."""
    found: dict[str, Part] = {}
    if not family.concatenated_parameters:
        return found
    for layer in geometry.layers:
        own = layer_config(family, config, geometry, layer)
        claimed = {c.tensor: c.size for c in family.channel_rows(own, geometry.for_layer(layer))}
        for leaves in family.concatenated_parameters.values():
            sizes = [claimed[leaf] for leaf in leaves]
            parts = [len(part) for part in torch.arange(sum(sizes)).chunk(len(sizes))]
            starts = accumulate(sizes[:-1], initial=0)
            places = list(zip(leaves, starts, sizes, strict=True))
            for mixer in family.mixer_prefixes:
                home = mixer.format(layer=layer)
                names = tuple(f"{home}.{leaf}" for leaf in leaves)
                if _equal(parts, [tensors.get(name) for name in names]) and parts != sizes:
                    found |= {f"{home}.{leaf}": Part(names, at, n) for leaf, at, n in places}
    return found


def _equal(parts: list[int], stored: list[TensorInfo | None]) -> bool:
    """Whether the tensors have `parts` rows, and are alike in all else."""
    known = [tensor for tensor in stored if tensor is not None and tensor.shape]
    return (
        len(known) == len(parts)
        and [tensor.shape[0] for tensor in known] == parts
        and len({(tensor.dtype, tensor.shape[1:]) for tensor in known}) == 1
    )
