"""Tensors that transformers concatenates on loading and splits into equal parts on saving.

The original parts may differ in size: OLMo-Hybrid's values are wider than its keys. A checkpoint
that was loaded and saved holds every row, in order, but some under a neighbour's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch

from ..cut.geometry import Geometry
from ..families.contract import Config, Family, layer_config
from .safetensors_file import TensorInfo


@dataclass(frozen=True)
class RowRange:
    """Rows `start` to `start + size` of the concatenated tensors `names`."""

    names: tuple[str, ...]
    start: int
    size: int


def find_resplit_tensors(
    family: Family, config: Config, geometry: Geometry, tensors: Mapping[str, TensorInfo]
) -> dict[str, RowRange]:
    """Tensor name -> where its rows are stored, if it was split into equal parts."""
    row_ranges: dict[str, RowRange] = {}
    if not family.concatenated_parameters:
        return row_ranges
    for layer in geometry.layers:
        own_config = layer_config(family, config, geometry, layer)
        channel_rows = family.channel_rows(own_config, geometry.for_layer(layer))
        sizes_by_leaf = {rows.tensor: rows.size for rows in channel_rows}
        for leaves in family.concatenated_parameters.values():
            sizes = [sizes_by_leaf[leaf] for leaf in leaves]
            equal_sizes = [len(chunk) for chunk in torch.arange(sum(sizes)).chunk(len(sizes))]
            if equal_sizes == sizes:
                continue
            for mixer in family.mixer_prefixes:
                names = tuple(f"{mixer.format(layer=layer)}.{leaf}" for leaf in leaves)
                if _have_rows(equal_sizes, names, tensors):
                    starts = accumulate(sizes[:-1], initial=0)
                    for name, start, size in zip(names, starts, sizes, strict=True):
                        row_ranges[name] = RowRange(names, start, size)
    return row_ranges


def _have_rows(
    row_counts: list[int], names: tuple[str, ...], tensors: Mapping[str, TensorInfo]
) -> bool:
    """Whether the tensors `names` exist with these numbers of rows, and agree in all else."""
    row_kinds: set[tuple[str, tuple[int, ...]]] = set()
    for name, row_count in zip(names, row_counts, strict=True):
        tensor = tensors.get(name)
        if tensor is None or not tensor.shape or tensor.shape[0] != row_count:
            return False
        row_kinds.add((tensor.dtype, tensor.shape[1:]))
    return len(row_kinds) == 1
