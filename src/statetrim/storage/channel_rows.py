"""Find the rows of each tensor that belong to channels or heads, as the family describes them.

Every tensor of a mixer must be known to the family: an unknown name is an error, never a guess.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, Role
from ..errors import StatetrimError
from ..families.contract import Config, Family, layer_config
from .quantized.find import is_packed
from .safetensors_file import DTYPES, TensorInfo

_SOFTMAX_TENSORS = {
    "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
    "q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias",
}  # fmt: skip
_DIMENSIONS = {"proj": 2, "conv": 3, "bias": 1, "norm": 1}
"""Last word of a role -> dimensions of such a tensor; others may have any number."""


@dataclass(frozen=True)
class LayerRows:
    """The channel rows of one tensor, and the decoder layer that the tensor belongs to."""

    layer: int
    channel_rows: list[ChannelRows]


def find_channel_rows(
    family: Family, config: Config, geometry: Geometry, tensors: Iterable[TensorInfo]
) -> dict[str, LayerRows]:
    """Tensor name -> the rows of its channels, for every tensor that holds some."""
    by_layer = _rows_by_layer(family, config, geometry, family.channel_rows)
    # DOTALL: a name with a line break in it is still a name under the mixer.
    prefixes = family.mixer_prefixes
    mixer_of_layer = re.compile("|".join(_layer_pattern(p) for p in prefixes), re.DOTALL)
    mixer_anywhere = re.compile("|".join(_mixer_pattern(p) for p in prefixes), re.DOTALL)
    # Names of linear attention alone; softmax attention has a q_proj.weight too.
    distinctive = set(family.unchanged_tensors).union(*by_layer.values()) - _SOFTMAX_TENSORS

    rows_by_tensor: dict[str, LayerRows] = {}
    seen: dict[tuple[int, str], str] = {}
    for tensor in tensors:
        name = tensor.name
        match = mixer_of_layer.fullmatch(name)
        if match is None:
            stray = mixer_anywhere.search(name)
            if stray and next(group for group in stray.groups() if group) in distinctive:
                raise StatetrimError(
                    f"tensor {name[:200]!r} looks like linear attention outside the decoder; "
                    f"refusing to guess what to do with it"
                )
            continue
        number, leaf = (group for group in match.groups() if group)  # of the one that matched
        layer = int(number)
        if layer not in by_layer:
            if leaf in distinctive:
                raise StatetrimError(
                    f"tensor {name[:200]!r} belongs to a linear-attention layer, but the config "
                    f"does not list layer {layer} as one"
                )
            continue
        if (layer, leaf) in seen:
            raise StatetrimError(
                f"layer {layer} has {leaf!r} twice: {name} and {seen[layer, leaf]}"
            )
        seen[layer, leaf] = name
        if leaf in by_layer[layer]:
            for rows in by_layer[layer][leaf]:
                _check_fit(rows, tensor, geometry)
            rows_by_tensor[name] = LayerRows(layer, by_layer[layer][leaf])
        elif is_packed(name):
            raise StatetrimError(
                f"tensor {name[:200]!r} is of a quantised weight that cannot be cut; prune the "
                f"unquantised weights and quantise the result"
            )
        elif leaf not in family.unchanged_tensors:
            raise StatetrimError(
                f"tensor {name[:200]!r} is not one that family {type(family).__name__} knows; "
                f"refusing to guess whether it holds key channels"
            )
    for layer, by_leaf in by_layer.items():
        for leaf, rows_list in by_leaf.items():
            if (layer, leaf) not in seen:
                _check_may_lack(layer, leaf, rows_list)
    return rows_by_tensor


def find_head_rows(
    family: Family, config: Config, geometry: Geometry, tensors: Iterable[TensorInfo]
) -> dict[str, LayerRows]:
    """Tensor name -> the rows of its heads; `find_channel_rows` accepted the `tensors`."""
    by_layer = _rows_by_layer(family, config, geometry, family.head_rows)
    tensors_by_name = {tensor.name: tensor for tensor in tensors}
    rows_by_tensor: dict[str, LayerRows] = {}
    for layer, by_leaf in by_layer.items():
        for leaf, rows_list in by_leaf.items():
            names = [f"{mixer.format(layer=layer)}.{leaf}" for mixer in family.mixer_prefixes]
            stored_names = [name for name in names if name in tensors_by_name]
            for name in stored_names:
                for rows in rows_list:
                    _check_fit(rows, tensors_by_name[name], geometry)
                rows_by_tensor[name] = LayerRows(layer, rows_list)
            if not stored_names:
                _check_may_lack(layer, leaf, rows_list)
    return rows_by_tensor


def names_by_layer(rows_by_tensor: Mapping[str, LayerRows], role: Role) -> dict[int, str]:
    """Layer -> name of its tensor whose first entry has this role; layers without are absent."""
    return {
        layer_rows.layer: name
        for name, layer_rows in rows_by_tensor.items()
        if layer_rows.channel_rows[0].role == role
    }


def _rows_by_layer(
    family: Family,
    config: Config,
    geometry: Geometry,
    describe: Callable[[Config, Geometry], list[ChannelRows]],
) -> dict[int, dict[str, list[ChannelRows]]]:
    """Layer -> tensor within the mixer -> its rows; layers of one shape share them."""
    by_shape: dict[Geometry, dict[str, list[ChannelRows]]] = {}
    for layer in geometry.layers:
        shape = geometry.for_layer(layer)
        if shape not in by_shape:
            by_leaf = by_shape.setdefault(shape, {})
            for rows in describe(layer_config(family, config, geometry, layer), shape):
                by_leaf.setdefault(rows.tensor, []).append(rows)
    return {layer: by_shape[geometry.for_layer(layer)] for layer in geometry.layers}


def _layer_pattern(mixer: str) -> str:
    """Matches full names below `mixer`; groups: number of the layer, name within the mixer."""
    before, after = map(re.escape, mixer.split("{layer}"))
    return rf"{before}(0|[1-9][0-9]{{0,5}}){after}\.(.+)"


def _mixer_pattern(mixer: str) -> str:
    """Finds the last part of `mixer` anywhere in a name; group: name within the mixer."""
    return rf"\.{re.escape(mixer.rpartition('.')[2])}\.(.+)$"


def _check_may_lack(layer: int, leaf: str, rows_list: list[ChannelRows]) -> None:
    if not rows_list[0].optional:
        raise StatetrimError(f"layer {layer} lacks the tensor {leaf!r} that its config implies")


def _check_fit(rows: ChannelRows, tensor: TensorInfo, geometry: Geometry) -> None:
    if tensor.dtype not in DTYPES:
        raise StatetrimError(
            f"tensor {tensor.name!r} is stored as {tensor.dtype}, quantised in a way that cannot "
            f"be cut; prune the unquantised weights and quantise the result"
        )
    kind = rows.role.rpartition("_")[2]
    dimensions = _DIMENSIONS.get(kind, len(tensor.shape))
    if len(tensor.shape) != dimensions or 0 in tensor.shape:
        expected = f"{dimensions} dimensions, none of them empty"
    elif kind == "conv" and tensor.shape[-1] != geometry.conv_width:
        expected = f"a convolution {geometry.conv_width} wide"
    elif len(tensor.shape) <= rows.dim or tensor.shape[rows.dim] != rows.size:
        expected = f"{rows.size} along dimension {rows.dim}"
    else:
        return
    raise StatetrimError(
        f"tensor {tensor.name!r} has shape {list(tensor.shape)}, but its config implies {expected}"
    )


@dataclass(frozen=True)
class RowRange:
    """Rows `start` to `start + size` of the concatenated tensors `names`."""

    names: tuple[str, ...]
    start: int
    size: int


def find_resplit_tensors(
    family: Family, config: Config, geometry: Geometry, tensors: Mapping[str, TensorInfo]
) -> dict[str, RowRange]:
    """Tensor name -> where its rows are stored, if it was split into equal parts.

    transformers concatenates some tensors on loading, and splits them into equal parts on saving.
    They may differ in size: OLMo-Hybrid's values are wider than its keys. Every row stays, in
    order, but some are under a neighbour's name.
    """
    row_ranges: dict[str, RowRange] = {}
    if not family.concatenated_parameters:
        return row_ranges
    for layer, by_leaf in _rows_by_layer(family, config, geometry, family.channel_rows).items():
        for leaves in family.concatenated_parameters.values():
            sizes = [by_leaf[leaf][0].size for leaf in leaves]
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
