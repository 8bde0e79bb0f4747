"""What the transformers Gated DeltaNet families share: the `linear_*` config fields."""

from ..geometry import ChannelRows, Geometry, row_indices
from .contract import (
    MOST_CHANNELS,
    MOST_HEADS,
    MOST_LAYERS,
    Config,
    Family,
    checked,
    count,
    layer_kinds,
    layers_of_kind,
)
from .recurrences import Recurrence, delta_rule


class LinearFieldsFamily(Family):
    """A model of transformers with Gated DeltaNet layers."""

    kernels = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
    positional = dict.fromkeys(kernels, ("query", "key", "value"))

    def recurrence(self, kernel: str) -> Recurrence:
        return delta_rule


def linear_geometry(config: Config) -> Geometry:
    key_heads = count(config, "linear_num_key_heads", default=16, most=MOST_HEADS)
    value_heads = count(config, "linear_num_value_heads", default=32, most=MOST_HEADS)
    return checked(
        Geometry(
            layers=linear_layers(config),
            num_k_heads=key_heads,
            num_v_heads=value_heads,
            head_k_dim=count(config, "linear_key_head_dim", default=128, most=MOST_CHANNELS),
            head_v_dim=count(config, "linear_value_head_dim", default=128, most=MOST_CHANNELS),
            conv_key_heads=2 * key_heads,
            conv_value_heads=value_heads,
            conv_width=count(config, "linear_conv_kernel_dim", default=4, most=1024),
        )
    )


def linear_layers(config: Config) -> tuple[int, ...]:
    """From `layer_types`, or every layer but each `full_attention_interval`-th."""
    kinds = layer_kinds(config, "layer_types")
    if kinds is None:
        total = count(config, "num_hidden_layers", most=MOST_LAYERS)
        every = count(config, "full_attention_interval", default=4)
        kinds = ["linear_attention" if (i + 1) % every else "other" for i in range(total)]
    return layers_of_kind(kinds, "linear_attention")


def resized_linear(config: Config, geometry: Geometry) -> Config:
    return config | {
        "linear_num_key_heads": geometry.num_k_heads,
        "linear_num_value_heads": geometry.num_v_heads,
        "linear_key_head_dim": geometry.head_k_dim,
        "linear_value_head_dim": geometry.head_v_dim,
    }


def contiguous_q_k_v(geometry: Geometry) -> tuple[ChannelRows, ChannelRows, ChannelRows]:
    """Claims on the convolution over all of q, then all of k, then all of v."""
    heads, dim = geometry.num_k_heads, geometry.head_k_dim
    values = row_indices(geometry.num_v_heads, geometry.head_v_dim, start=2 * heads * dim)
    size = 2 * heads * dim + values.numel()
    return (
        ChannelRows("conv1d.weight", "q_conv", row_indices(heads, dim), size),
        ChannelRows("conv1d.weight", "k_conv", row_indices(heads, dim, start=heads * dim), size),
        ChannelRows("conv1d.weight", "v_conv", values, size, axis="value"),
    )


def norm_and_output(geometry: Geometry) -> list[ChannelRows]:
    """Claims on what stands behind the recurrence."""
    table, dim = row_indices(geometry.num_v_heads, geometry.head_v_dim), geometry.head_v_dim
    return [
        ChannelRows("norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value"),
        ChannelRows("out_proj.weight", "o_proj", table, table.numel(), axis="value", dim=1),
    ]
