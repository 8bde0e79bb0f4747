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
class RowRange:
    """Rows `start` to `start + size` of `names`, laid one after the other."""

    names: tuple[str, ...]
    start: int
    size: int


def find_resplit_tensors(
    family: Family, config: Config, geometry: Geometry, tensors: Mapping[str, TensorInfo]
) -> dict[str, RowRange]:
    """Tensor name -> where its own rows lie; only tensors that lie in equal parts are listed."""
    row_ranges: dict[str, RowRange] = {}
    if not family.concatenated_parameters:
        return row_ranges
    for layer in geometry.layers:
        own_config = layer_config(family, config, geometry, layer)
        sizes_by_leaf = {
            rows.tensor: rows.size
            for rows in family.channel_rows(own_config, geometry.for_layer(layer))
        }
        for leaves in family.concatenated_parameters.values():
            sizes = [sizes_by_leaf[leaf] for leaf in leaves]
            equal_sizes = [len(chunk) for chunk in torch.arange(sum(sizes)).chunk(len(sizes))]
            starts = accumulate(sizes[:-1], initial=0)
            leaf_ranges = list(zip(leaves, starts, sizes, strict=True))
            for mixer in family.mixer_prefixes:
                mixer_name = mixer.format(layer=layer)
                names = tuple(f"{mixer_name}.{leaf}" for leaf in leaves)
                if (
                    _have_rows(equal_sizes, [tensors.get(name) for name in names])
                    and equal_sizes != sizes
                ):
                    row_ranges |= {
                        f"{mixer_name}.{leaf}": RowRange(names, start, size)
                        for leaf, start, size in leaf_ranges
                    }
    return row_ranges


def _have_rows(row_counts: list[int], tensors: list[TensorInfo | None]) -> bool:
    """Whether the tensors have `parts` rows, and are alike in all else."""
    present = [tensor for tensor in tensors if tensor is not None and tensor.shape]
    return (
        len(present) == len(row_counts)
        and [tensor.shape[0] for tensor in present] == row_counts
        and len({(tensor.dtype, tensor.shape[1:]) for tensor in present}) == 1
    )
