"""Mamba-2 and its hybrids: B is the key, C the query, and a group of B and C is a key head.

in_proj: [ gate | x | B | C | dt ], convolution: [ x | B | C ], each B and C packed group by group.
Nemotron-H is also the text model of two types with image or audio input (`NESTED_TEXT_CONFIGS`).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..cut.geometry import MAX_LAYERS, Geometry
from ..cut.rows import ChannelRows, Role, head_rows_from_channels, per_head_rows, row_indices
from ..cut.shape import ChannelAxis
from ..errors import StatetrimError
from .contract import (
    NO_KV_CACHE,
    Config,
    Family,
    KVCacheSize,
    attention_kv_cache_size,
    float_field,
    int_field,
    layer_indices_field,
    layer_types_field,
    layers_of_type,
    nested_text_config,
    num_layers,
    num_softmax_layers,
)
from .recurrences import Recurrence, mamba2


@dataclass(frozen=True)
class ConfigFields:
    """Config field names of one model type, and the defaults of its stock class."""

    state: str
    groups: tuple[str, ...]
    heads: str
    head_dim: str | None  # None: always the inner width divided by the heads
    conv: tuple[str, ...]
    expand: str
    default_state: int = 128
    default_groups: int = 1
    default_heads: int | None = None
    default_head_dim: int | None = None
    inner: str | None = None  # a field that sets the inner width instead of `expand`
    key_value_heads: int | None = None  # of the softmax layers; None: one per query head
    attention_head_dim: int | None = None  # None: the hidden size divided by the heads


_MAMBA_FIELDS = ConfigFields(
    state="mamba_d_state",
    groups=("mamba_n_groups",),
    heads="mamba_n_heads",
    head_dim="mamba_d_head",
    conv=("mamba_d_conv",),
    expand="mamba_expand",
    default_state=256,
    default_heads=128,
)
FIELDS_BY_TYPE = {
    "mamba2": ConfigFields(
        state="state_size",
        groups=("n_groups",),
        heads="num_heads",
        head_dim="head_dim",
        conv=("conv_kernel",),
        expand="expand",
        default_head_dim=64,
    ),
    "bamba": replace(_MAMBA_FIELDS, key_value_heads=8),
    "falcon_h1": replace(_MAMBA_FIELDS, inner="mamba_d_ssm", key_value_heads=8),
    "granitemoehybrid": _MAMBA_FIELDS,
    "nemotron_h": ConfigFields(
        state="ssm_state_size",
        groups=("mamba_n_groups", "n_groups"),
        heads="mamba_num_heads",
        head_dim="mamba_head_dim",
        conv=("mamba_d_conv", "conv_kernel"),
        expand="expand",
        default_groups=8,
        default_heads=128,
        default_head_dim=64,
        key_value_heads=8,
        attention_head_dim=128,
    ),
    "zamba2": ConfigFields(
        state="mamba_d_state",
        groups=("mamba_ngroups",),
        heads="n_mamba_heads",
        head_dim=None,
        conv=("mamba_d_conv",),
        expand="mamba_expand",
        default_state=64,
        default_heads=8,
    ),
}


NESTED_TEXT_CONFIGS = {
    "nemotron_h_omni": ("text_config", "llm_config"),
    "nemo_speechlm": ("text_config",),
}
"""Multimodal model type -> names of the field with its Nemotron-H text config (`nemo_speechlm` is
Nemotron 3.5 Transcribe)."""


_NUMBERS_OF_HEADS = (
    "A_log", "D", "dt_bias", "_fp32_params.A_log", "_fp32_params.D", "_fp32_params.dt_bias",
)  # fmt: skip


class Mamba2(Family):
    model_types: ClassVar[tuple[str, ...]] = (*FIELDS_BY_TYPE, *NESTED_TEXT_CONFIGS)
    mixer_prefixes: ClassVar[tuple[str, ...]] = (
        "backbone.layers.{layer}.mixer",
        "model.layers.{layer}.mixer",
        "model.layers.{layer}.mamba",
        "model.layers.{layer}.mamba_decoder.mamba",
        "language_model.backbone.layers.{layer}.mixer",
        "language_model.model.layers.{layer}.mixer",
        "llm.model.layers.{layer}.mixer",
        "model.language_model.layers.{layer}.mixer",
    )
    unchanged_tensors: ClassVar[tuple[str, ...]] = (*_NUMBERS_OF_HEADS, "out_proj.bias")
    kernels: ClassVar[tuple[str, ...]] = ("mamba2_chunk_scan", "mamba2_selective_state_update")
    query_and_key = (("C", "B"),)  # C reads and B writes
    row_buffers = {"mup_vector": "in_proj.weight"}  # noqa: RUF012
    positional_arguments = {  # noqa: RUF012
        "mamba2_chunk_scan": ("hidden_states", "dt", "A", "B", "C"),
        "mamba2_selective_state_update": ("state", "hidden_states", "dt", "A", "B", "C", "D"),
    }
    normalizes_keys = False
    scales_queries = False
    norm_over_heads = True
    state_key_axis = -1
    projections = ("in_proj", "out_proj")
    fused_training = True

    def geometry(self, config: Config) -> Geometry:
        config = _text_config(config)
        fields = FIELDS_BY_TYPE[config["model_type"]]
        groups = int_field(config, *fields.groups, default=fields.default_groups)
        heads, head_dim = _heads_and_width(config, fields)
        return Geometry(
            layers=_linear_layers(config),
            num_k_heads=groups,
            num_v_heads=heads,
            head_k_dim=int_field(config, fields.state, default=fields.default_state),
            head_v_dim=head_dim,
            conv_key_heads=2 * groups,
            conv_value_heads=heads,
            conv_width=int_field(config, *fields.conv, default=4),
        )

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        values = row_indices(geometry.num_v_heads, geometry.head_v_dim)
        groups = row_indices(geometry.num_k_heads, geometry.head_k_dim)
        inner = values.numel()
        conv_size = inner + 2 * groups.numel()
        in_proj_size = inner + conv_size + geometry.num_v_heads
        layout: list[tuple[Tensor, ChannelAxis, Role, Role, Role]] = [  # rows in the convolution
            (inner + groups, "key", "k_proj", "k_bias", "k_conv"),
            (inner + groups.numel() + groups, "key", "q_proj", "q_bias", "q_conv"),
            (values, "value", "v_proj", "v_bias", "v_conv"),
        ]
        channel_rows = [
            ChannelRows("in_proj.weight", "gate", values, in_proj_size, "value"),
            ChannelRows("in_proj.bias", "gate", values, in_proj_size, "value", optional=True),
            ChannelRows("norm.weight", "norm", values, inner, "value", optional=True),
            ChannelRows("out_proj.weight", "o_proj", values, inner, "value", dim=1),
        ]
        for table, axis, proj, bias, conv in layout:
            shifted = inner + table  # in_proj begins with the gate
            channel_rows += [
                ChannelRows("in_proj.weight", proj, shifted, in_proj_size, axis),
                ChannelRows("in_proj.bias", bias, shifted, in_proj_size, axis, optional=True),
                ChannelRows("conv1d.weight", conv, table, conv_size, axis),
                ChannelRows("conv1d.bias", bias, table, conv_size, axis, optional=True),
            ]
        return channel_rows

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """The rows of a group's B and C are those of its key head."""
        heads, channel_rows = geometry.num_v_heads, self.channel_rows(config, geometry)
        size = next(rows.size for rows in channel_rows if rows.tensor == "in_proj.weight")
        steps = row_indices(heads, 1, start=size - heads)  # dt
        return head_rows_from_channels(
            channel_rows,
            [
                ChannelRows("in_proj.weight", "gate", steps, size, "value"),
                ChannelRows("in_proj.bias", "gate", steps, size, "value", optional=True),
            ],
            per_head_rows(_NUMBERS_OF_HEADS, heads),
        )

    def resized(self, config: Config, geometry: Geometry) -> Config:
        if config["model_type"] in NESTED_TEXT_CONFIGS:
            names = NESTED_TEXT_CONFIGS[config["model_type"]]
            name = next(name for name in names if config.get(name) is not None)
            return config | {name: self.resized(_text_config(config), geometry)}
        fields = FIELDS_BY_TYPE[config["model_type"]]
        groups = int_field(config, *fields.groups, default=fields.default_groups)
        if geometry.num_k_heads != groups:
            raise StatetrimError(
                f"the groups of {config['model_type']} stay: keep a multiple of {groups} heads"
            )
        edited = config | {fields.state: geometry.head_k_dim}
        if (geometry.num_v_heads, geometry.head_v_dim) == _heads_and_width(config, fields):
            return edited
        edited |= {fields.heads: geometry.num_v_heads}
        if fields.head_dim:
            edited |= {fields.head_dim: geometry.head_v_dim}
        if "mamba_headdim" in config:  # Zamba2: overrides the computed head width
            edited |= {"mamba_headdim": geometry.head_v_dim}
        return edited | _inner_width_fields(config, fields, geometry)

    def auto_class(self, config: Config) -> str:
        is_multimodal = config["model_type"] in NESTED_TEXT_CONFIGS
        return "AutoModelForMultimodalLM" if is_multimodal else super().auto_class(config)

    def cache_argument(self, config: Config) -> str:
        return "cache_params" if config.get("model_type") == "mamba2" else "past_key_values"

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize | None:
        config = _text_config(config)
        model_type = config["model_type"]
        if model_type == "mamba2":
            return NO_KV_CACHE
        if model_type == "zamba2":
            return _zamba2_kv_cache_size(config)
        if model_type == "falcon_h1":  # every layer has a state and a KV cache
            layers = len(geometry.layers)
        elif model_type == "nemotron_h":
            layer_types = _nemotron_layer_types(config)
            layers = sum(kind in ("attention", "full_attention") for kind in layer_types)
        else:
            layers = num_softmax_layers(config, geometry)
        fields = FIELDS_BY_TYPE[model_type]
        return attention_kv_cache_size(
            config,
            layers,
            default_kv_heads=fields.key_value_heads,
            default_head_dim=fields.attention_head_dim,
        )

    def recurrence(self, kernel: str) -> Recurrence | None:
        return mamba2 if kernel == "mamba2_chunk_scan" else None


def _text_config(config: Config) -> Config:
    """The config of the text model: the nested one of a multimodal model, else `config`."""
    names = NESTED_TEXT_CONFIGS.get(config["model_type"])
    return config if names is None else nested_text_config(config, ("nemotron_h",), *names)


def _inner_width_fields(config: Config, fields: ConfigFields, geometry: Geometry) -> Config:
    """The fields that hold the inner width (heads x head width) of `geometry`. Refuses one that
    is no integer `expand`."""
    inner = geometry.num_v_heads * geometry.head_v_dim
    if config["model_type"] == "nemotron_h":
        return {}  # its inner width is not a field
    if fields.inner is not None:
        return {fields.inner: inner}
    hidden = int_field(config, "hidden_size")
    if inner % hidden:
        heads, width = _heads_and_width(config, fields)
        widths = [str(n) for n in range(1, width) if n * heads % hidden == 0]
        counts = [str(n) for n in range(1, heads) if n * width % hidden == 0]
        raise StatetrimError(
            f"a stock {config['model_type']} config gives heads times their width as a whole "
            f"multiple of hidden_size = {hidden}, so value channels alone can only be cut to "
            f"{' or '.join(widths) or 'none below what they have'} per head, and heads alone to "
            f"{' or '.join(counts) or 'none below what there are'}"
        )
    return {fields.expand: inner // hidden}


def _heads_and_width(config: Config, fields: ConfigFields) -> tuple[int, int]:
    """Value heads and their width, as the stock class reads them: what the config does not set is
    the class's default, or else follows from the inner width, for heads rounded down. Refuses heads
    that do not divide it."""
    if fields.inner is not None and (
        fields.inner not in config or config[fields.inner] is not None
    ):
        inner = int_field(config, fields.inner, default=1024)
    else:
        inner = int(float_field(config, fields.expand, 2.0) * int_field(config, "hidden_size"))
    has_head_dim = fields.head_dim and config.get(fields.head_dim) not in (None, "auto")
    if has_head_dim or (fields.default_head_dim and config.get(fields.heads) is None):
        dim = int_field(config, str(fields.head_dim), default=fields.default_head_dim)
        heads = int_field(
            config, fields.heads, default=fields.default_heads or max(1, inner // dim)
        )
        return heads, dim
    heads = int_field(config, fields.heads, default=fields.default_heads)
    if inner % heads:
        raise StatetrimError(
            f"config field {fields.heads!r} = {heads} does not divide the inner width {inner}"
        )
    return heads, inner // heads


def _linear_layers(config: Config) -> tuple[int, ...]:
    """Indices of the layers with a state: those that the config lists as Mamba, or all that it does
    not list as softmax layers. Refuses a model without any."""
    layer_types = None
    if config["model_type"] == "nemotron_h":
        layer_types = _nemotron_layer_types(config)
    elif config["model_type"] == "granitemoehybrid":
        layer_types = layer_types_field(config, "layer_types")
    if layer_types is None:
        softmax_layers = layer_indices_field(config, "attn_layer_indices")
        total = num_layers(config)
        layer_types = ["other" if i in softmax_layers else "mamba" for i in range(total)]
    return layers_of_type(layer_types, "linear_attention", "mamba")


_PATTERN = {"M": "mamba", "*": "attention"}
"""Letter -> type of the layer; other letters are of layers without a state or a KV cache."""


def _nemotron_layer_types(config: Config) -> list[str]:
    """The type of every layer, as a list names it or as the letters of a pattern mean it; refuses a
    config with neither, and a number of layers other than `num_hidden_layers`."""
    pattern = config.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        spelled = [_PATTERN.get(letter, "other") for letter in pattern[: MAX_LAYERS + 1]]
        config = config | {"hybrid_override_pattern": spelled}
    for name in ("layers_block_type", "layer_types", "hybrid_override_pattern"):
        layer_types = layer_types_field(config, name)
        if layer_types is not None:
            return layer_types
    raise StatetrimError(
        "config has none of 'layers_block_type', 'layer_types' and 'hybrid_override_pattern', so "
        "its Mamba layers are not known"
    )


def _zamba2_kv_cache_size(config: Config) -> KVCacheSize | None:
    """The KV cache of the layers of type "hybrid"; None if the config does not list types. Their
    shared attention block reads the hidden state concatenated with the embedding, so its heads are
    twice as wide."""
    layer_types = layer_types_field(config, "layers_block_type")
    if layer_types is None:
        return None
    heads = int_field(config, "num_attention_heads", default=32)
    width = max(1, 2 * int_field(config, "hidden_size", default=2560) // heads)
    width = int_field(config, "attention_head_dim", default=width)
    return attention_kv_cache_size(config | {"head_dim": width}, layer_types.count("hybrid"))


FAMILY = Mamba2()
