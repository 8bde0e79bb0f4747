"""The contract of a model family: facts, and arithmetic over `config.json`; never a weight."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from ..errors import StatetrimError
from ..geometry import ChannelRows, Geometry
from ..maths.units import is_integer_list
from .recurrences import Recurrence

Config = dict[str, Any]

MAX_LAYERS = 4096
MAX_HEADS = 4096
MAX_CHANNELS = 65536
_MAX_NUMBER = 2**24  # of any other count
_MAX_ROWS = 2**20  # heads x channels: row tables stay small for hostile configs


RuntimeName = Literal["transformers", "fla", "portable"]


@dataclass(frozen=True)
class KVCacheSize:
    """`layers` softmax layers, each with `numel` numbers a token (keys and values together)."""

    layers: int
    numel: int


NO_KV_CACHE = KVCacheSize(0, 0)


class Family(ABC):
    """A description of one kind of model: which rows of which tensors hold a channel, what runs the
    model, and how its kernel is called.

    On disk: `mixers` are the name prefixes of a linear layer's tensors, with `{layer}` for the
    decoder layer. Every tensor with such a prefix must be claimed by `channels` or named in
    `untouched`; anything else is refused.

    In the loaded model: `kernels` are the names by which the mixer's module calls its recurrence;
    calibration and analysis hook in there. `query_and_key` are the names of the kernel's arguments;
    of several pairs, the first that a kernel receives is used. `positional` names arguments that a
    kernel receives by position, if the kernel's own signature does not. `normalizes_keys` says
    whether the kernel divides q and k by their L2 norms, `scales_queries` whether it divides q by
    the square root of the width it sees; `state_key_axis` is the axis of keys in its states.
    `projections` are the linear modules of a mixer, which recovery adapts. `joined` names
    parameters that the loaded model concatenates from several tensors. `row_buffers` names buffers
    that are the same in every mixer, with one number per row of a tensor. `flat` names tensors
    [heads, channels], which are claimed as if the heads were concatenated. `fused_training` says
    that a mixer in training mode passes its weights to one kernel, which bypasses any adapter on
    them.
    """

    model_types: ClassVar[tuple[str, ...]]
    mixer_prefixes: ClassVar[tuple[str, ...]]
    unchanged_tensors: ClassVar[tuple[str, ...]]
    kernels: ClassVar[tuple[str, ...]] = ()
    query_and_key: ClassVar[tuple[tuple[str, str], ...]] = (("q", "k"), ("query", "key"))
    positional_arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    normalizes_keys: ClassVar[bool] = True
    scales_queries: ClassVar[bool] = True
    state_key_axis: ClassVar[int] = -2
    projections: ClassVar[tuple[str, ...]] = ()
    concatenated_parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    row_buffers: ClassVar[Mapping[str, str]] = {}
    flattened_tensors: ClassVar[tuple[str, ...]] = ()
    fused_training: ClassVar[bool] = False

    @abstractmethod
    def geometry(self, config: Config) -> Geometry:
        """The state's shape, as the stock class would read it from this config."""

    @abstractmethod
    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """Every tensor of a mixer that holds channels of the state, and which rows they are."""

    @abstractmethod
    def resized(self, config: Config, geometry: Geometry) -> Config:
        """A copy of the config whose state has `geometry`'s heads, head_k_dim and head_v_dim."""

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """Every tensor of a mixer that holds whole heads: a claim of axis "key" has the entries of
        each key head, one of axis "value" those of each value head. Empty where that is not known.
        """
        return []

    def refusal(self, config: Config) -> str | None:
        """Why a checkpoint with this config cannot be pruned, or None when it can."""
        return None

    def channel_refusal(self, config: Config) -> str | None:
        """Why its channels cannot be cut, of either axis, or None when they can."""
        return None

    def head_refusal(self, config: Config) -> str | None:
        """Why whole heads cannot be removed, or None when they can (and `heads` claims them)."""
        return None

    def value_refusal(self, config: Config) -> str | None:
        """Why its values cannot be cut, or None when they can (and `channels` claims them)."""
        return None

    def runtimes(self, config: Config) -> tuple[RuntimeName, ...]:
        """What can run such a model; the first that works on this machine does."""
        return ("transformers",)

    def refuses_float32(self, config: Config) -> bool:
        """Whether fla's kernel for more than a few tokens takes no float32."""
        return False

    def register(self) -> None:  # noqa: B027  (most have nothing to tell)
        """Tell transformers' Auto classes of the model, where they do not know it by themselves.
        Called before it is loaded, perhaps more than once."""

    def auto_class(self, config: Config) -> str:
        """The Auto class of transformers that loads the model with its head."""
        return "AutoModelForCausalLM"

    def cache_argument(self, config: Config) -> str:
        """The name of the cache in the model's forward pass, and in what that returns."""
        return "past_key_values"

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize | None:
        """What the softmax layers keep of every token; None where it is not known."""
        return None

    def recurrence(self, kernel: str) -> Recurrence | None:
        """How a kernel writes the state (see `recurrences`); None where it is not known."""
        return None


LAYER_WIDTHS_FIELD = "statetrim_widths"
"""The config field of an uneven model: layer -> [keys, values] per head. No stock code reads it;
the other fields say the widest, so that stock code finds weights that do not fit, and refuses."""


def geometry_of(family: Family, config: Config) -> Geometry:
    """The state's shape, of every layer where they differ."""
    geometry = family.geometry(config)
    widths = config.get(LAYER_WIDTHS_FIELD)
    if widths is None:
        return geometry
    layer_by_name = {str(layer): layer for layer in geometry.layers}
    if not isinstance(widths, dict) or set(widths) != set(layer_by_name):
        raise StatetrimError(
            f"config field {LAYER_WIDTHS_FIELD!r} must list every linear-attention layer"
        )
    if not all(is_integer_list(shape) and len(shape) == 2 for shape in widths.values()):
        raise StatetrimError(
            f"config field {LAYER_WIDTHS_FIELD!r} must list [keys, values] for every layer"
        )
    if not all(width >= 1 for shape in widths.values() for width in shape):
        raise StatetrimError(f"config field {LAYER_WIDTHS_FIELD!r} must hold numbers from 1")
    by_layer = geometry.with_shapes(
        {layer_by_name[name]: (k, v) for name, (k, v) in widths.items()}
    )
    if not by_layer.widths or by_layer != replace(geometry, widths=by_layer.widths):
        raise StatetrimError(
            f"config field {LAYER_WIDTHS_FIELD!r} must differ between layers, and the widest must be "
            f"{geometry.head_k_dim} keys and {geometry.head_v_dim} values"
        )
    return by_layer


def resized_config(family: Family, config: Config, after: Geometry) -> Config:
    """The config with its state resized, once it is certain to read back as that very size, and
    that each layer's own shape is one that a stock config can express."""
    stock_config = {name: value for name, value in config.items() if name != LAYER_WIDTHS_FIELD}
    for layer_geometry in {after.for_layer(layer) for layer in after.layers}:
        _resized_stock_config(family, stock_config, layer_geometry)
    edited = _resized_stock_config(family, stock_config, after)
    if after.widths:
        edited[LAYER_WIDTHS_FIELD] = {
            str(layer): [*layer_geometry] for layer, layer_geometry in after.shapes.items()
        }
    return edited


def layer_config(family: Family, config: Config, geometry: Geometry, layer: int) -> Config:
    """The config of a stock model whose layers all have the shape of this one."""
    return resized_config(family, config, geometry.for_layer(layer)) if geometry.widths else config


def _resized_stock_config(family: Family, config: Config, after: Geometry) -> Config:
    before, model_type = family.geometry(config), config.get("model_type")
    heads_differ = (before.num_k_heads, before.num_v_heads) != (
        after.num_k_heads,
        after.num_v_heads,
    )
    if heads_differ and (reason := family.head_refusal(config)):
        raise StatetrimError(f"the heads of {model_type} cannot be removed: {reason}")
    if before.shape != after.shape and (reason := family.channel_refusal(config)):
        raise StatetrimError(f"the channels of {model_type} cannot be cut: {reason}")
    edited = family.resized(config, after)
    if family.geometry(edited) != replace(after, widths=()):
        if heads_differ:
            raise StatetrimError(
                f"a stock {model_type} config cannot express {after.num_k_heads} key heads and "
                f"{after.num_v_heads} value heads"
            )
        raise StatetrimError(
            f"a stock {model_type} config cannot express {after.head_k_dim} key and "
            f"{after.head_v_dim} value channels per head; try a multiple of 16"
        )
    return edited


def int_field(
    config: Config, *names: str, default: int | None = None, maximum: int = _MAX_NUMBER
) -> int:
    """A positive integer from the first of `names` the config has, else `default`."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise StatetrimError(
                f"config field {name!r} must be a whole number, not {_short_repr(value)}"
            )
        if not 1 <= value <= maximum:
            raise StatetrimError(
                f"config field {name!r} must lie between 1 and {maximum}, not {_short_repr(value)}"
            )
        return value
    if default is None:
        raise StatetrimError(f"config field {names[0]!r} is absent, and this model type needs it")
    return default


def float_field(config: Config, name: str, default: float) -> float:
    """A positive finite number."""
    value = config.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MAX_NUMBER:
        raise StatetrimError(
            f"config field {name!r} must be a positive number, not {_short_repr(value)}"
        )
    return float(value)


def bool_field(config: Config, name: str, default: bool) -> bool:
    value = config.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise StatetrimError(
            f"config field {name!r} must be true or false, not {_short_repr(value)}"
        )
    return value


def nested_config(config: Config, name: str) -> Config:
    """A nested object of the config."""
    value = config.get(name)
    if not isinstance(value, dict):
        raise StatetrimError(
            f"config field {name!r} must be an object, and this model type needs it"
        )
    return value


def nested_text_config(config: Config, model_types: tuple[str, ...], *names: str) -> Config:
    """The nested config of a model's text part, by the first of `names` there is; one of `kinds`,
    the first of which is its type where it names none."""
    name = next((name for name in names if config.get(name) is not None), names[0])
    text = nested_config(config, name)
    model_type = text.get("model_type", model_types[0])
    if model_type not in model_types:
        raise StatetrimError(
            f"the text model of this {config.get('model_type')} is of type {_short_repr(model_type)}; "
            f"statetrim knows it with: {', '.join(model_types)}"
        )
    return text | {"model_type": model_type}


def layer_types_field(config: Config, name: str) -> list[str] | None:
    """A list with the kind of every decoder layer, or None where the config leaves it out."""
    value = config.get(name)
    if value is None:
        return None
    if (
        not isinstance(value, list)
        or not 1 <= len(value) <= MAX_LAYERS
        or not all(isinstance(layer_type, str) for layer_type in value)
    ):
        raise StatetrimError(f"config field {name!r} must list the kind of every layer")
    total = int_field(config, "num_hidden_layers", default=len(value), maximum=MAX_LAYERS)
    if total != len(value):
        raise StatetrimError(
            f"config field {name!r} lists {len(value)} layers, 'num_hidden_layers' {total}"
        )
    return value


def layer_indices_field(config: Config, name: str) -> list[int]:
    """A list of layer numbers; empty where the config leaves it out."""
    value = config.get(name)
    if value is None:
        return []
    if not is_integer_list(value) or not all(0 <= layer <= MAX_LAYERS for layer in value):
        raise StatetrimError(f"config field {name!r} must be a list of layer numbers")
    return sorted(set(value))


def layers_of_type(layer_types: Sequence[str], *wanted: str) -> tuple[int, ...]:
    """Indices of the layers of the wanted kinds; a model without any has no state to cut."""
    layers = tuple(layer for layer, layer_type in enumerate(layer_types) if layer_type in wanted)
    if not layers:
        raise StatetrimError("this config lists no linear-attention layer, so there is no state")
    return layers


def num_softmax_layers(config: Config, geometry: Geometry, default: int | None = None) -> int:
    """How many decoder layers have no linear attention; `default` layers in all."""
    layer_types = layer_types_field(config, "layer_types") or layer_types_field(
        config, "layers_block_type"
    )
    if layer_types is not None:
        return len(layer_types) - len(geometry.layers)
    total = int_field(config, "num_hidden_layers", default=default, maximum=MAX_LAYERS)
    return total - len(geometry.layers)


def attention_kv_cache_size(
    config: Config,
    layers: int,
    *,
    heads: int = 32,
    default_kv_heads: int | None = None,
    default_hidden_size: int = 4096,
    default_head_dim: int | None = None,
) -> KVCacheSize:
    """Keys and values of `layers` layers of ordinary attention, by its usual config fields; the
    numbers are the stock class's defaults (None: all heads; the hidden size shared by them)."""
    heads = int_field(config, "num_attention_heads", default=heads, maximum=MAX_HEADS)
    kv_heads = int_field(
        config, "num_key_value_heads", default=default_kv_heads or heads, maximum=MAX_HEADS
    )
    width_per_head = max(1, int_field(config, "hidden_size", default=default_hidden_size) // heads)
    width = int_field(
        config, "head_dim", default=default_head_dim or width_per_head, maximum=MAX_CHANNELS
    )
    return KVCacheSize(layers, 2 * kv_heads * width)


def validated_geometry(geometry: Geometry) -> Geometry:
    """`geometry`, once its numbers are ones a real model could have."""
    if geometry.num_v_heads % geometry.num_k_heads:
        raise StatetrimError(
            f"the config has {geometry.num_v_heads} value heads for {geometry.num_k_heads} key "
            f"heads, which is not a whole number for each"
        )
    for channels in (geometry.head_k_dim, geometry.head_v_dim):
        if not 1 <= geometry.num_v_heads * channels <= _MAX_ROWS:
            raise StatetrimError(
                f"the config asks for {geometry.num_v_heads} heads of {channels} channels, "
                f"which no real model has"
            )
    return geometry


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
