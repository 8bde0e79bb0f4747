"""Mamba-2 and its hybrids: B is the key, C the query, a B/C group is a key head.

in_proj: [ gate | x | B | C | dt ], convolution: [ x | B | C ], each B and C packed group by group.
Nemotron-H is also the text model of two types that see and hear (`TEXTS`).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from ..errors import StatetrimError
from ..geometry import ChannelRows, Geometry, Role, row_indices
from .contract import (
    MOST_CHANNELS,
    MOST_HEADS,
    MOST_LAYERS,
    NO_SOFTMAX,
    Config,
    Family,
    SoftmaxCache,
    attention_cache,
    checked,
    count,
    layer_kinds,
    layer_numbers,
    layers_of_kind,
    number,
    other_layers,
    text_section,
)
from .recurrences import Recurrence, mamba2


@dataclass(frozen=True)
class Fields:
    """The names one model type gives to the same numbers, and its defaults."""

    state: str
    groups: tuple[str, ...]
    heads: str
    head_dim: str | None  # None: always the inner width over the heads
    conv: tuple[str, ...]
    expand: str
    default_state: int = 128
    default_groups: int = 1
    default_heads: int | None = None
    default_head_dim: int | None = None
    inner: str | None = None  # a field that sets the inner width instead of `expand`
    kinds: str | None = None  # a field that lists the layers' kinds
    key_value_heads: int | None = None  # of the softmax layers; None: as many as heads
    attention_head_dim: int | None = None  # None: the hidden size shared by the heads


_D_STATE = Fields(
    state="mamba_d_state",
    groups=("mamba_n_groups",),
    heads="mamba_n_heads",
    head_dim="mamba_d_head",
    conv=("mamba_d_conv",),
    expand="mamba_expand",
    default_state=256,
    default_heads=128,
)
FIELDS = {
    "mamba2": Fields(
        state="state_size",
        groups=("n_groups",),
        heads="num_heads",
        head_dim="head_dim",
        conv=("conv_kernel",),
        expand="expand",
        default_groups=1,
        default_head_dim=64,
    ),
    "bamba": replace(_D_STATE, key_value_heads=8),
    "falcon_h1": replace(_D_STATE, inner="mamba_d_ssm", key_value_heads=8),
    "granitemoehybrid": replace(_D_STATE, kinds="layer_types"),
    "nemotron_h": Fields(
        state="ssm_state_size",
        groups=("mamba_n_groups", "n_groups"),
        heads="mamba_num_heads",
        head_dim="mamba_head_dim",
        conv=("mamba_d_conv", "conv_kernel"),
        expand="expand",
        default_groups=8,
        default_heads=128,
        default_head_dim=64,
        kinds="layers_block_type",
        key_value_heads=8,
        attention_head_dim=128,
    ),
    "zamba2": Fields(
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


TEXTS = {"nemotron_h_omni": ("text_config", "llm_config"), "nemo_speechlm": ("text_config",)}
"""The names of the nested config of a Nemotron-H text model, by the type around it (the second is
that of Nemotron 3.5 Transcribe)."""


class Mamba2(Family):
    model_types: ClassVar[tuple[str, ...]] = (*FIELDS, *TEXTS)
    mixers: ClassVar[tuple[str, ...]] = (
        "backbone.layers.{layer}.mixer",
        "model.layers.{layer}.mixer",
        "model.layers.{layer}.mamba",
        "model.layers.{layer}.mamba_decoder.mamba",
        "language_model.backbone.layers.{layer}.mixer",
        "language_model.model.layers.{layer}.mixer",
        "llm.model.layers.{layer}.mixer",
        "model.language_model.layers.{layer}.mixer",
    )
    untouched: ClassVar[tuple[str, ...]] = (
        "A_log",
        "D",
        "dt_bias",
        "_fp32_params.A_log",
        "_fp32_params.D",
        "_fp32_params.dt_bias",
        "out_proj.bias",
    )
    kernels: ClassVar[tuple[str, ...]] = ("mamba2_chunk_scan", "mamba2_selective_state_update")
    query_and_key = (("C", "B"),)  # C reads and B writes
    row_buffers = {"mup_vector": "in_proj.weight"}  # noqa: RUF012
    positional = {  # noqa: RUF012
        "mamba2_chunk_scan": ("hidden_states", "dt", "A", "B", "C"),
        "mamba2_selective_state_update": ("state", "hidden_states", "dt", "A", "B", "C", "D"),
    }
    normalizes_keys = False
    scales_queries = False
    state_key_axis = -1
    projections = ("in_proj", "out_proj")
    fused_training = True

    def geometry(self, config: Config) -> Geometry:
        config = _text(config)
        fields = FIELDS[config["model_type"]]
        groups = count(config, *fields.groups, default=fields.default_groups, most=MOST_HEADS)
        heads, head_dim = _heads(config, fields)
        return checked(
            Geometry(
                layers=_linear_layers(config, fields),
                num_k_heads=groups,
                num_v_heads=heads,
                head_k_dim=count(
                    config, fields.state, default=fields.default_state, most=MOST_CHANNELS
                ),
                head_v_dim=head_dim,
                conv_key_heads=2 * groups,
                conv_value_heads=heads,
                conv_width=count(config, *fields.conv, default=4, most=1024),
            )
        )

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        groups, state = geometry.num_k_heads, geometry.head_k_dim
        inner = geometry.num_v_heads * geometry.head_v_dim
        b, c = inner, inner + groups * state  # where B and C begin in the convolution
        conv = inner + 2 * groups * state
        projection = inner + conv + geometry.num_v_heads
        claims = []
        parts: list[tuple[int, Role, Role, Role]] = [
            (b, "k_proj", "k_bias", "k_conv"),
            (c, "q_proj", "q_bias", "q_conv"),
        ]
        for start, proj, bias, taps in parts:
            in_proj, in_conv = (
                row_indices(groups, state, start=inner + start),
                row_indices(groups, state, start),
            )
            claims += [
                ChannelRows("in_proj.weight", proj, in_proj, projection),
                ChannelRows("in_proj.bias", bias, in_proj, projection, optional=True),
                ChannelRows("conv1d.weight", taps, in_conv, conv),
                ChannelRows("conv1d.bias", bias, in_conv, conv, optional=True),
            ]
        return claims + self._values(geometry, projection, conv)

    def _values(self, geometry: Geometry, projection: int, conv: int) -> list[ChannelRows]:
        """x, its gate, the norm (a weight for every channel of every head) and out_proj."""
        table = row_indices(geometry.num_v_heads, geometry.head_v_dim)
        inner = table.numel()
        found: list[tuple[str, Role, Tensor, int, bool]] = [
            ("in_proj.weight", "gate", table, projection, False),
            ("in_proj.weight", "v_proj", table + inner, projection, False),
            ("in_proj.bias", "gate", table, projection, True),
            ("in_proj.bias", "v_bias", table + inner, projection, True),
            ("conv1d.weight", "v_conv", table, conv, False),
            ("conv1d.bias", "v_bias", table, conv, True),
            ("norm.weight", "norm", table, inner, True),
        ]
        return [
            *(
                ChannelRows(name, role, where, size, axis="value", optional=optional)
                for name, role, where, size, optional in found
            ),
            ChannelRows("out_proj.weight", "o_proj", table, inner, axis="value", dim=1),
        ]

    def resized(self, config: Config, geometry: Geometry) -> Config:
        if config["model_type"] in TEXTS:
            names = TEXTS[config["model_type"]]
            name = next(name for name in names if config.get(name) is not None)
            return config | {name: self.resized(_text(config), geometry)}
        fields = FIELDS[config["model_type"]]
        edited = config | {fields.state: geometry.head_k_dim}
        if geometry.head_v_dim == _heads(config, fields)[1]:
            return edited
        edited |= {fields.heads: geometry.num_v_heads}
        if fields.head_dim:
            edited |= {fields.head_dim: geometry.head_v_dim}
        if "mamba_headdim" in config:  # Zamba2 computes it, but takes a stored one instead
            edited |= {"mamba_headdim": geometry.head_v_dim}
        return edited | _inner_width(config, fields, geometry)

    def auto_class(self, config: Config) -> str:
        inside = config["model_type"] in TEXTS
        return "AutoModelForMultimodalLM" if inside else super().auto_class(config)

    def head_refusal(self, config: Config) -> str | None:
        return (
            "its output norm runs over the heads together, so that the others would change as well"
        )

    def cache_argument(self, config: Config) -> str:
        return "cache_params" if config.get("model_type") == "mamba2" else "past_key_values"

    def softmax_cache(self, config: Config, geometry: Geometry) -> SoftmaxCache | None:
        config = _text(config)
        model_type = config["model_type"]
        if model_type == "mamba2":
            return NO_SOFTMAX
        if model_type == "zamba2":
            return _shared_attention(config)
        if model_type == "falcon_h1":  # both kinds of attention in every layer
            layers = len(geometry.layers)
        elif model_type == "nemotron_h":
            softmax = ("attention", "full_attention", "*")
            layers = sum(kind in softmax for kind in _nemotron_kinds(config))
        else:
            layers = other_layers(config, geometry)
        fields = FIELDS[model_type]
        return attention_cache(
            config,
            layers,
            key_value_heads=fields.key_value_heads,
            head_dim=fields.attention_head_dim,
        )

    def recurrence(self, kernel: str) -> Recurrence | None:
        return mamba2 if kernel == "mamba2_chunk_scan" else None


def _text(config: Config) -> Config:
    """The config of the model that has the states: this one, or the text model inside it."""
    names = TEXTS.get(config["model_type"])
    return config if names is None else text_section(config, ("nemotron_h",), *names)


def _inner_width(config: Config, fields: Fields, geometry: Geometry) -> Config:
    """The fields that must agree with heads times their width; `expand` must be whole."""
    inner = geometry.num_v_heads * geometry.head_v_dim
    if config["model_type"] == "nemotron_h":
        return {}  # reads the two widths and nothing else
    if fields.inner is not None:
        return {fields.inner: inner}
    hidden = count(config, "hidden_size")
    if inner % hidden:
        raise StatetrimError(
            f"a stock {config['model_type']} config gives heads times their width as a whole "
            f"multiple of hidden_size = {hidden}, so value channels can only be cut to "
            f"{_widths(hidden, geometry.num_v_heads, _heads(config, fields)[1])} per head"
        )
    return {fields.expand: inner // hidden}


def _widths(hidden: int, heads: int, channels: int) -> str:
    """The widths below `channels` at which `heads` heads are a whole multiple of `hidden`."""
    found = [str(width) for width in range(1, channels) if heads * width % hidden == 0]
    return " or ".join(found) or "none below what they have"


def _heads(config: Config, fields: Fields) -> tuple[int, int]:
    """Heads and their width; upstream derives whichever of the two the config leaves open."""
    if fields.inner is not None:
        inner = count(config, fields.inner, default=1024)
    else:
        hidden = count(config, "hidden_size")
        inner = int(number(config, fields.expand, 2.0) * hidden)
    explicit = fields.head_dim and config.get(fields.head_dim) not in (None, "auto")
    if explicit or (fields.default_head_dim and config.get(fields.heads) is None):
        dim = count(
            config, str(fields.head_dim), default=fields.default_head_dim, most=MOST_CHANNELS
        )
        heads = count(
            config,
            fields.heads,
            default=fields.default_heads or max(1, inner // dim),
            most=MOST_HEADS,
        )
        return heads, dim
    heads = count(config, fields.heads, default=fields.default_heads, most=MOST_HEADS)
    if inner % heads:
        raise StatetrimError(
            f"config field {fields.heads!r} = {heads} does not divide the inner width {inner}"
        )
    return heads, inner // heads


def _linear_layers(config: Config, fields: Fields) -> tuple[int, ...]:
    if config["model_type"] == "nemotron_h":
        return layers_of_kind(_nemotron_kinds(config), "linear_attention", "mamba", "M")
    kinds = layer_kinds(config, fields.kinds) if fields.kinds else None
    if kinds is not None:
        return layers_of_kind(kinds, "linear_attention", "mamba")
    total = count(config, "num_hidden_layers", most=MOST_LAYERS)
    softmax = layer_numbers(config, "attn_layer_indices")
    return layers_of_kind(["other" if i in softmax else "mamba" for i in range(total)], "mamba")


def _nemotron_kinds(config: Config) -> list[str]:
    kinds = layer_kinds(config, "layers_block_type") or layer_kinds(config, "layer_types")
    pattern = config.get("hybrid_override_pattern")
    if kinds is None and isinstance(pattern, str) and len(pattern) <= MOST_LAYERS:
        kinds = list(pattern)  # M for Mamba, * for attention
    if kinds is None:
        raise StatetrimError(
            "config has neither 'layers_block_type' nor 'hybrid_override_pattern', "
            "so its Mamba layers are not known"
        )
    return kinds


def _shared_attention(config: Config) -> SoftmaxCache | None:
    """Zamba-2's reads the hidden state beside the embedding, so its heads have twice the width."""
    kinds = layer_kinds(config, "layers_block_type")
    if kinds is None:
        return None
    heads = count(config, "num_attention_heads", default=32, most=MOST_HEADS)
    width = max(1, 2 * count(config, "hidden_size", default=2560) // heads)
    width = count(config, "attention_head_dim", default=width, most=MOST_CHANNELS)
    return attention_cache(config | {"head_dim": width}, kinds.count("hybrid"))


FAMILY = Mamba2()
