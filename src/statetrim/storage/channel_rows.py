"""Which tensors of a checkpoint hold channels, and in which rows: every name must be foreseen."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..errors import StatetrimError
from ..families.contract import Config, Family, layer_config
from ..geometry import ChannelRows, Geometry, Role
from .safetensors_file import DTYPES, TensorInfo

_SOFTMAX_TENSORS = {f"{name}_proj.{part}" for name in "qkvo" for part in ("weight", "bias")}
_DIMENSIONS: dict[Role, int] = {
    "q_proj": 2,
    "k_proj": 2,
    "v_proj": 2,
    "o_proj": 2,
    "q_conv": 3,
    "k_conv": 3,
    "v_conv": 3,
    "q_bias": 1,
    "k_bias": 1,
    "v_bias": 1,
    "norm": 1,
    "shared_norm": 1,
}


@dataclass(frozen=True)
class LayerRows:
    """The claims on one tensor of one decoder layer."""

    layer: int
    channel_rows: list[ChannelRows] = field(default_factory=list)


def find_channel_rows(
    family: Family, config: Config, geometry: Geometry, tensors: Iterable[TensorInfo]
) -> dict[str, LayerRows]:
    """Tensor name -> its claims. Names are matched whole and anchored; whatever the family did not
    foresee is refused."""
    by_layer = _rows_by_layer(family, config, geometry, family.channel_rows)
    # DOTALL: a name with a line break in it is still a name under the mixer.
    mixer_of_layer = re.compile(
        "|".join(_layer_pattern(mixer) for mixer in family.mixer_prefixes), re.DOTALL
    )
    mixer_anywhere = re.compile(
        "|".join(_mixer_pattern(mixer) for mixer in family.mixer_prefixes), re.DOTALL
    )
    described = {name for by_leaf in by_layer.values() for name in by_leaf}
    distinctive = (described | set(family.unchanged_tensors)) - _SOFTMAX_TENSORS

    rows_by_tensor: dict[str, LayerRows] = {}
    seen: dict[tuple[int, str], str] = {}
    for tensor in tensors:
        name = tensor.name
        match = mixer_of_layer.fullmatch(name)
        if match is None:
            stray_match = mixer_anywhere.search(name)
            if (
                stray_match
                and next(group for group in stray_match.groups() if group) in distinctive
            ):
                raise StatetrimError(
                    f"tensor {name[:200]!r} looks like linear attention outside the decoder; "
                    f"refusing to guess what to do with it"
                )
            continue
        number, leaf = (group for group in match.groups() if group)
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
        elif leaf not in family.unchanged_tensors:
            raise StatetrimError(
                f"tensor {name[:200]!r} is not one that family {type(family).__name__} knows; "
                f"refusing to guess whether it holds key channels"
            )
    for layer, by_leaf in by_layer.items():
        for leaf, rows_list in by_leaf.items():
            if (layer, leaf) not in seen and not rows_list[0].optional:
                raise StatetrimError(
                    f"layer {layer} lacks the tensor {leaf!r} that its config implies"
                )
    return rows_by_tensor


def find_head_rows(
    family: Family, config: Config, geometry: Geometry, tensors: Iterable[TensorInfo]
) -> dict[str, LayerRows]:
    """The same of whole heads, for tensors that `resolve` has passed."""
    by_layer = _rows_by_layer(family, config, geometry, family.head_rows)
    tensors_by_name = {tensor.name: tensor for tensor in tensors}
    rows_by_tensor: dict[str, LayerRows] = {}
    for layer, by_leaf in by_layer.items():
        mixer_names = [mixer.format(layer=layer) for mixer in family.mixer_prefixes]
        for leaf, rows_list in by_leaf.items():
            names = [
                f"{mixer_name}.{leaf}"
                for mixer_name in mixer_names
                if f"{mixer_name}.{leaf}" in tensors_by_name
            ]
            if not names and not rows_list[0].optional:
                raise StatetrimError(
                    f"layer {layer} lacks the tensor {leaf!r} that its config implies"
                )
            for name in names:
                for rows in rows_list:
                    _check_fit(rows, tensors_by_name[name], geometry)
                rows_by_tensor[name] = LayerRows(layer, rows_list)
    return rows_by_tensor


def _rows_by_layer(
    family: Family,
    config: Config,
    geometry: Geometry,
    describe: Callable[[Config, Geometry], list[ChannelRows]],
) -> dict[int, dict[str, list[ChannelRows]]]:
    """Layer -> tensor of its mixer -> claims; layers of one shape share them."""
    by_shape: dict[Geometry, dict[str, list[ChannelRows]]] = {}
    for layer in geometry.layers:
        shape = geometry.for_layer(layer)
        if shape not in by_shape:
            by_leaf = by_shape.setdefault(shape, {})
            for rows in describe(layer_config(family, config, geometry, layer), shape):
                by_leaf.setdefault(rows.tensor, []).append(rows)
    return {layer: by_shape[geometry.for_layer(layer)] for layer in geometry.layers}


def _layer_pattern(mixer: str) -> str:
    before, after = map(re.escape, mixer.split("{layer}"))
    return rf"{before}(0|[1-9][0-9]{{0,5}}){after}\.(.+)"


def _mixer_pattern(mixer: str) -> str:
    return rf"\.{re.escape(mixer.rpartition('.')[2])}\.(.+)$"


def _check_fit(rows: ChannelRows, tensor: TensorInfo, geometry: Geometry) -> None:
    if tensor.dtype not in DTYPES:
        raise StatetrimError(
            f"tensor {tensor.name!r} is stored as {tensor.dtype}: quantised rows cannot be cut; "
            f"prune the original weights and quantise the result"
        )
    convolution = rows.role in ("q_conv", "k_conv", "v_conv")
    dimensions = _DIMENSIONS.get(rows.role, len(tensor.shape))
    if len(tensor.shape) != dimensions or 0 in tensor.shape:
        raise StatetrimError(
            f"tensor {tensor.name!r} has shape {list(tensor.shape)}; it must have {dimensions} "
            f"dimensions, none of them empty"
        )
    if convolution and tensor.shape[-1] != geometry.conv_width:
        raise StatetrimError(
            f"tensor {tensor.name!r} has shape {list(tensor.shape)}, but its config implies a "
            f"convolution {geometry.conv_width} wide"
        )
    if len(tensor.shape) <= rows.dim or tensor.shape[rows.dim] != rows.size:
        raise StatetrimError(
            f"tensor {tensor.name!r} has shape {list(tensor.shape)}, but its config implies "
            f"{rows.size} along dimension {rows.dim}"
        )
