"""Which tensors of a checkpoint hold channels, and in which rows: every name must be foreseen."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..errors import StatetrimError
from ..families.contract import Config, Family, layer_config
from ..geometry import ChannelRows, Geometry, Role
from .safetensors_file import DTYPES, TensorInfo

_SOFTMAX = {f"{name}_proj.{part}" for name in "qkvo" for part in ("weight", "bias")}
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
class LayerClaims:
    """The claims on one tensor of one decoder layer."""

    layer: int
    claims: list[ChannelRows] = field(default_factory=list)


def resolve(
    family: Family, config: Config, geometry: Geometry, tensors: Iterable[TensorInfo]
) -> dict[str, LayerClaims]:
    """Tensor name -> its claims. Names are matched whole and anchored; whatever the family did not
    foresee is refused."""
    by_layer = _claims(family, config, geometry, family.channel_rows)
    # DOTALL: a name with a line break in it is still a name under the mixer.
    anchored = re.compile("|".join(_anchored(mixer) for mixer in family.mixer_prefixes), re.DOTALL)
    stray = re.compile("|".join(_anywhere(mixer) for mixer in family.mixer_prefixes), re.DOTALL)
    named = {name for by_name in by_layer.values() for name in by_name}
    telling = (named | set(family.unchanged_tensors)) - _SOFTMAX

    found: dict[str, LayerClaims] = {}
    seen: dict[tuple[int, str], str] = {}
    for tensor in tensors:
        name = tensor.name
        match = anchored.fullmatch(name)
        if match is None:
            tail = stray.search(name)
            if tail and next(part for part in tail.groups() if part) in telling:
                raise StatetrimError(
                    f"tensor {name[:200]!r} looks like linear attention outside the decoder; "
                    f"refusing to guess what to do with it"
                )
            continue
        number, leaf = (part for part in match.groups() if part)
        layer = int(number)
        if layer not in by_layer:
            if leaf in telling:
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
            for claim in by_layer[layer][leaf]:
                _check_fit(claim, tensor, geometry)
            found[name] = LayerClaims(layer, by_layer[layer][leaf])
        elif leaf not in family.unchanged_tensors:
            raise StatetrimError(
                f"tensor {name[:200]!r} is not one that family {type(family).__name__} knows; "
                f"refusing to guess whether it holds key channels"
            )
    for layer, by_name in by_layer.items():
        for leaf, claims in by_name.items():
            if (layer, leaf) not in seen and not claims[0].optional:
                raise StatetrimError(
                    f"layer {layer} lacks the tensor {leaf!r} that its config implies"
                )
    return found


def resolve_heads(
    family: Family, config: Config, geometry: Geometry, tensors: Iterable[TensorInfo]
) -> dict[str, LayerClaims]:
    """The same of whole heads, for tensors that `resolve` has passed."""
    by_layer = _claims(family, config, geometry, family.head_rows)
    by_name = {tensor.name: tensor for tensor in tensors}
    found: dict[str, LayerClaims] = {}
    for layer, by_leaf in by_layer.items():
        homes = [mixer.format(layer=layer) for mixer in family.mixer_prefixes]
        for leaf, claims in by_leaf.items():
            names = [f"{home}.{leaf}" for home in homes if f"{home}.{leaf}" in by_name]
            if not names and not claims[0].optional:
                raise StatetrimError(
                    f"layer {layer} lacks the tensor {leaf!r} that its config implies"
                )
            for name in names:
                for claim in claims:
                    _check_fit(claim, by_name[name], geometry)
                found[name] = LayerClaims(layer, claims)
    return found


def _claims(
    family: Family,
    config: Config,
    geometry: Geometry,
    tell: Callable[[Config, Geometry], list[ChannelRows]],
) -> dict[int, dict[str, list[ChannelRows]]]:
    """Layer -> tensor of its mixer -> claims; layers of one shape share them."""
    by_shape: dict[Geometry, dict[str, list[ChannelRows]]] = {}
    for layer in geometry.layers:
        shape = geometry.for_layer(layer)
        if shape not in by_shape:
            by_name = by_shape.setdefault(shape, {})
            for claim in tell(layer_config(family, config, geometry, layer), shape):
                by_name.setdefault(claim.tensor, []).append(claim)
    return {layer: by_shape[geometry.for_layer(layer)] for layer in geometry.layers}


def _anchored(mixer: str) -> str:
    before, after = map(re.escape, mixer.split("{layer}"))
    return rf"{before}(0|[1-9][0-9]{{0,5}}){after}\.(.+)"


def _anywhere(mixer: str) -> str:
    return rf"\.{re.escape(mixer.rpartition('.')[2])}\.(.+)$"


def _check_fit(claim: ChannelRows, tensor: TensorInfo, geometry: Geometry) -> None:
    if tensor.dtype not in DTYPES:
        raise StatetrimError(
            f"tensor {tensor.name!r} is stored as {tensor.dtype}: quantised rows cannot be cut; "
            f"prune the original weights and quantise the result"
        )
    convolution = claim.role in ("q_conv", "k_conv", "v_conv")
    dimensions = _DIMENSIONS.get(claim.role, len(tensor.shape))
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
    if len(tensor.shape) <= claim.dim or tensor.shape[claim.dim] != claim.size:
        raise StatetrimError(
            f"tensor {tensor.name!r} has shape {list(tensor.shape)}, but its config implies "
            f"{claim.size} along dimension {claim.dim}"
        )
