"""The base class of model families, and validated access to the fields of `config.json`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..cut.geometry import MAX_LAYERS, Geometry
from ..cut.rows import ChannelRows
from ..errors import StatetrimError
from ..maths.units import is_integer_list
from .recurrences import Recurrence

Config = dict[str, Any]

_MAX_NUMBER = 2**24  # of any field

RuntimeName = Literal["transformers", "fla", "portable"]


@dataclass(frozen=True)
class KVCacheSize:
    """`layers` softmax layers; each caches `numel` numbers (keys and values) per token, in `heads`
    heads. A `latent` cache (MLA) has one vector for all heads."""

    layers: int
    numel: int
    heads: int = 1
    latent: bool = False


NO_KV_CACHE = KVCacheSize(0, 0)


class Family(ABC):
    """Describes one kind of model: which tensor rows hold the channels of its state, which runtimes
    run it, and how its kernel is called. Instances have no state and read no weights.

    Every tensor under a mixer prefix must be in `channel_rows` or in `unchanged_tensors`; a
    checkpoint with any other tensor there is refused.
    """

    model_types: ClassVar[tuple[str, ...]]
    file: Path | None = None
    """The user's file that defines it; None in this package."""

    # On disk
    mixer_prefixes: ClassVar[tuple[str, ...]]
    """Prefixes of the tensor names of a mixer, with `{layer}` for the decoder layer."""
    unchanged_tensors: ClassVar[tuple[str, ...]]
    """Tensors of a mixer, without the prefix, that channel pruning copies as they are."""
    flattened_tensors: ClassVar[tuple[str, ...]] = ()
    """Tensors [heads, channels]; their channel rows index the flattened tensor."""

    # In the loaded model
    kernels: ClassVar[tuple[str, ...]] = ()
    """Names by which the mixer's module calls its kernels; calibration and analysis hook these."""
    query_and_key: ClassVar[tuple[tuple[str, str], ...]] = (("q", "k"), ("query", "key"))
    """Possible names of a kernel's query and key arguments; the first pair it receives is used."""
    other_keys: ClassVar[tuple[str, ...]] = ()
    """Further arguments with key channels, where a kernel has them."""
    positional_arguments: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Kernel -> names of its positional arguments, where its signature does not show them."""
    normalizes_keys: ClassVar[bool] = True
    """Whether the kernel divides q and k by their L2 norms."""
    scales_queries: ClassVar[bool] = True
    """Whether the kernel divides q by the square root of the key width."""
    norm_over_heads: ClassVar[bool] = False
    """Whether the output norm takes its mean over several heads, so that removing some changes the
    scale of the others."""
    state_key_axis: ClassVar[int] = -2
    """The axis of the key channels in the kernel's states."""
    projections: ClassVar[tuple[str, ...]] = ()
    """The linear modules of a mixer; recovery puts LoRA adapters on them."""
    read_projections: ClassVar[tuple[str, ...]] = ()
    """Those of `projections` that are never called, because another function reads their weight;
    recovery trains it in full."""
    concatenated_parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Parameter of the loaded mixer -> the stored tensors that it concatenates."""
    row_buffers: ClassVar[Mapping[str, str]] = {}
    """Buffer, equal in all mixers -> the tensor for whose rows it holds one number each."""
    fused_training: ClassVar[bool] = False
    """Whether a mixer in training mode passes its weights to one kernel, bypassing adapters."""

    @abstractmethod
    def geometry(self, config: Config) -> Geometry:
        """The shape of the state, by the same rules and defaults as the stock model class."""

    @abstractmethod
    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """The rows of each tensor of a mixer that belong to channels of the state."""

    @abstractmethod
    def resized(self, config: Config, geometry: Geometry) -> Config:
        """A copy of the config whose state has `geometry`'s heads, head_k_dim and head_v_dim."""

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """The rows of each tensor of a mixer that belong to a head: a key head for axis "key", a
        value head for axis "value". Empty if unknown, which rules out removing heads."""
        return []

    def refusal(self, config: Config) -> str | None:
        """Why a checkpoint with this config cannot be pruned, or None when it can."""
        return None

    def channel_refusal(self, config: Config) -> str | None:
        """Why neither key nor value channels can be removed, or None when they can."""
        return None

    def head_refusal(self, config: Config) -> str | None:
        """Why whole heads cannot be removed, or None when `head_rows` allows it."""
        return None

    def value_refusal(self, config: Config) -> str | None:
        """Why value channels cannot be removed, or None when `channel_rows` allows it."""
        return None

    def runtimes(self, config: Config) -> tuple[RuntimeName, ...]:
        """Runtimes for the model, preferred first; the first one that works here is used."""
        return ("transformers",)

    def refuses_float32(self, config: Config) -> bool:
        """Whether fla's chunked kernel (for more than a few tokens) rejects float32."""
        return False

    def register(self) -> None:  # noqa: B027  (optional)
        """Register the model with transformers' Auto classes if they do not know it. Called before
        each load, so it must be repeatable."""

    def auto_class(self, config: Config) -> str:
        """The Auto class of transformers that loads the model with its language-model head."""
        return "AutoModelForCausalLM"

    def cache_argument(self, config: Config) -> str:
        """The name of the cache among the arguments and the outputs of the model's forward."""
        return "past_key_values"

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize | None:
        """The KV cache of the softmax layers per token; None if unknown."""
        return None

    def recurrence(self, kernel: str) -> Recurrence | None:
        """The function that reads the state updates from a kernel's arguments; None if unknown."""
        return None


LAYER_WIDTHS_FIELD = "statetrim_widths"
"""Config field of a model with widths by layer: layer -> [key width, value width]. Stock code does
not know it. The stock fields hold the largest widths, so stock code fails on the smaller weights
instead of loading them wrongly."""
_STATE_DTYPE_FIELDS = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
_TEXT_CONFIGS = ("text_config", "llm_config")


def geometry_of(family: Family, config: Config) -> Geometry:
    """The geometry of a config, including widths by layer (`LAYER_WIDTHS_FIELD`). Refuses widths
    that do not match the config's layers and stock fields."""
    geometry = family.geometry(config)
    try:
        geometry.validate()
    except ValueError as error:
        raise StatetrimError(
            f"config.json asks for a state that no real model has: {error}"
        ) from None
    widths = config.get(LAYER_WIDTHS_FIELD)
    if widths is None:
        return geometry
    layer_by_name = {str(layer): layer for layer in geometry.layers}
    if not isinstance(widths, dict) or set(widths) != set(layer_by_name):
        raise StatetrimError(
            f"config field {LAYER_WIDTHS_FIELD!r} must list every linear-attention layer"
        )
    shapes: dict[int, tuple[int, int]] = {}
    for name, shape in widths.items():
        if not is_integer_list(shape) or len(shape) != 2 or min(shape) < 1:
            raise StatetrimError(
                f"config field {LAYER_WIDTHS_FIELD!r} must list [keys, values], numbers from 1, "
                "for every layer"
            )
        shapes[layer_by_name[name]] = (shape[0], shape[1])
    by_layer = geometry.with_shapes(shapes)
    if not by_layer.widths or by_layer != replace(geometry, widths=by_layer.widths):
        raise StatetrimError(
            f"config field {LAYER_WIDTHS_FIELD!r} must differ between layers, and the widest must "
            f"be {geometry.head_k_dim} keys and {geometry.head_v_dim} values"
        )
    return by_layer


def resized_config(family: Family, config: Config, after: Geometry) -> Config:
    """A copy of the config for the geometry `after`. Refuses a geometry that does not read back
    unchanged from the new config, or a layer shape that no stock config can express."""
    stock_config = dict(config)
    stock_config.pop(LAYER_WIDTHS_FIELD, None)
    for layer_geometry in {after.for_layer(layer) for layer in after.layers}:
        _resized_stock_config(family, stock_config, layer_geometry)
    edited = _resized_stock_config(family, stock_config, after)
    if after.widths:
        edited[LAYER_WIDTHS_FIELD] = {str(layer): [*s] for layer, s in after.shapes.items()}
    return edited


def with_state_dtype(config: Config, dtype: str) -> Config:
    """A copy of the config whose field for the dtype of the state, if any, says `dtype`."""
    edited = config | {name: dtype for name in _STATE_DTYPE_FIELDS if name in config}
    for name in _TEXT_CONFIGS:
        if isinstance(config.get(name), dict):
            edited[name] = with_state_dtype(config[name], dtype)
    return edited


def layer_config(family: Family, config: Config, geometry: Geometry, layer: int) -> Config:
    """The config of a stock model in which every layer has the shape of `layer`; `config` itself if
    the layers do not differ."""
    return resized_config(family, config, geometry.for_layer(layer)) if geometry.widths else config


def _resized_stock_config(family: Family, config: Config, after: Geometry) -> Config:
    """The family's config for `after`, without widths by layer. Refuses removed heads or channels
    that the family rules out, and a geometry that does not read back unchanged."""
    before, model_type = family.geometry(config), config.get("model_type")
    same_key_heads = before.num_k_heads == after.num_k_heads
    heads_differ = not same_key_heads or before.num_v_heads != after.num_v_heads
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


def _field(config: Config, name: str, is_valid: Callable[[Any], bool], expected: str) -> Any:
    """The config field `name`, or None if it is absent or null; refuses values that are not valid,
    in a sentence that says what is `expected`."""
    value = config.get(name)
    if value is not None and not is_valid(value):
        raise StatetrimError(f"config field {name!r} must be {expected}, not {_short_repr(value)}")
    return value


def int_field(
    config: Config, *names: str, default: int | None = None, maximum: int = _MAX_NUMBER
) -> int:
    """A positive integer from the first of `names` that the config sets, else `default`. Refuses
    other values, and an absent field without a default."""
    for name in names:
        expected = f"a whole number from 1 to {maximum}"
        value = _field(config, name, lambda x: type(x) is int and 1 <= x <= maximum, expected)
        if value is not None:
            return int(value)
    if default is None:
        raise StatetrimError(f"config field {names[0]!r} is absent, and this model type needs it")
    return default


def num_layers(config: Config, default: int | None = None) -> int:
    """The number of decoder layers; `default` is that of the stock class."""
    return int_field(config, "num_hidden_layers", default=default, maximum=MAX_LAYERS)


def float_field(config: Config, name: str, default: float) -> float:
    """A positive number below 2**24 from the config field `name`, or `default` if it is absent;
    refuses other values."""

    def is_valid(value: Any) -> bool:
        return type(value) in (int, float) and 0 < value < _MAX_NUMBER

    value = _field(config, name, is_valid, "a positive number")
    return default if value is None else float(value)


def bool_field(config: Config, name: str, default: bool) -> bool:
    """The config field `name`, or `default` if it is absent or null; refuses values other than true
    and false."""
    value = _field(config, name, lambda x: isinstance(x, bool), "true or false")
    return default if value is None else bool(value)


def nested_config(config: Config, name: str) -> Config:
    """The object in the config field `name`; refuses a config without it."""
    value: Config | None = _field(config, name, lambda x: isinstance(x, dict), "an object")
    if value is None:
        raise StatetrimError(f"config field {name!r} is absent, and this model type needs it")
    if not isinstance(value.get("model_type"), str | None):
        raise StatetrimError(f"the 'model_type' of config field {name!r} must be a text")
    return value


def text_config(config: Config) -> Config:
    """The config of the text model inside a multimodal one, else `config`."""
    for name in _TEXT_CONFIGS:
        if isinstance(config.get(name), dict):
            return dict(config[name])
    return config


def nested_text_config(config: Config, model_types: tuple[str, ...], *names: str) -> Config:
    """A copy of the nested config of a text model, with its `model_type`, from the first of the
    fields `names` that is set. Refuses a model type outside `model_types`; the first of these is
    the default."""
    name = next((name for name in names if config.get(name) is not None), names[0])
    text = nested_config(config, name)
    model_type = text.get("model_type", model_types[0])
    if model_type not in model_types:
        raise StatetrimError(
            f"the text model of this {config.get('model_type')} is of type "
            f"{_short_repr(model_type)}; statetrim knows it with: {', '.join(model_types)}"
        )
    return text | {"model_type": model_type}


def layer_types_field(config: Config, name: str) -> list[str] | None:
    """A list with the type of every decoder layer, or None if the config does not set it. Refuses
    other values, and a length other than `num_hidden_layers`."""

    def is_valid(value: Any) -> bool:
        is_list = isinstance(value, list) and 1 <= len(value) <= MAX_LAYERS
        return is_list and all(isinstance(layer_type, str) for layer_type in value)

    value: list[str] | None = _field(config, name, is_valid, "a list of the kind of every layer")
    if value is None:
        return None
    total = num_layers(config, len(value))
    if total != len(value):
        raise StatetrimError(
            f"config field {name!r} lists {len(value)} layers, 'num_hidden_layers' {total}"
        )
    return value


def layer_indices_field(config: Config, name: str) -> list[int]:
    """A sorted list of layer indices without duplicates; empty if the config does not set it.
    Refuses other values."""

    def is_valid(value: Any) -> bool:
        return is_integer_list(value) and all(0 <= layer <= MAX_LAYERS for layer in value)

    value = _field(config, name, is_valid, "a list of layer numbers") or []
    return sorted(set(value))


def layers_of_type(layer_types: Sequence[str], *wanted: str) -> tuple[int, ...]:
    """Indices of the layers whose type is in `wanted`; refuses a model without any."""
    layers = tuple(layer for layer, layer_type in enumerate(layer_types) if layer_type in wanted)
    if not layers:
        raise StatetrimError("this config lists no linear-attention layer, so there is no state")
    return layers


def num_softmax_layers(config: Config, geometry: Geometry, default: int | None = None) -> int:
    """How many decoder layers have no linear attention. `default` is the stock class's
    `num_hidden_layers`."""
    layer_types = layer_types_field(config, "layer_types")
    layer_types = layer_types or layer_types_field(config, "layers_block_type")
    total = num_layers(config, default) if layer_types is None else len(layer_types)
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
    """The KV cache of `layers` layers of ordinary attention, from its usual config fields. `heads`
    and `default_*` are the stock class's defaults; None means one KV head per query head, and the
    hidden size divided by the heads."""
    heads = int_field(config, "num_attention_heads", default=heads)
    kv_heads = int_field(config, "num_key_value_heads", default=default_kv_heads or heads)
    width_per_head = max(1, int_field(config, "hidden_size", default=default_hidden_size) // heads)
    width = int_field(config, "head_dim", default=default_head_dim or width_per_head)
    return KVCacheSize(layers, 2 * kv_heads * width, kv_heads)


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
