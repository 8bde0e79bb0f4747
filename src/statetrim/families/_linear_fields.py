"""Shared by the Gated DeltaNet families of transformers: their `linear_*` config fields."""

from ..geometry import ChannelRows, Geometry, row_indices
from .contract import Config, Family, int_field, layer_types_field, layers_of_type, num_layers
from .recurrences import Recurrence, delta_rule


class LinearFieldsFamily(Family):
    """A model of transformers with Gated DeltaNet layers."""

    kernels = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
    positional_arguments = dict.fromkeys(kernels, ("query", "key", "value"))

    def recurrence(self, kernel: str) -> Recurrence:
        return delta_rule


def linear_geometry(config: Config) -> Geometry:
    """The geometry from the `linear_*` fields, with the defaults of the stock classes."""
    key_heads = int_field(config, "linear_num_key_heads", default=16)
    value_heads = int_field(config, "linear_num_value_heads", default=32)
    return Geometry(
        layers=linear_layers(config),
        num_k_heads=key_heads,
        num_v_heads=value_heads,
        head_k_dim=int_field(config, "linear_key_head_dim", default=128),
        head_v_dim=int_field(config, "linear_value_head_dim", default=128),
        conv_key_heads=2 * key_heads,
        conv_value_heads=value_heads,
        conv_width=int_field(config, "linear_conv_kernel_dim", default=4),
    )


def linear_layers(config: Config) -> tuple[int, ...]:
    """The layers that `layer_types` lists as linear attention, or all except every
    `full_attention_interval`-th. Refuses a model without any."""
    layer_types = layer_types_field(config, "layer_types")
    if layer_types is None:
        total = num_layers(config)
        interval = int_field(config, "full_attention_interval", default=4)
        layer_types = ["linear_attention" if (i + 1) % interval else "other" for i in range(total)]
    return layers_of_type(layer_types, "linear_attention")


def resized_linear_config(config: Config, geometry: Geometry) -> Config:
    """A copy of the config with the heads and widths of `geometry` in its `linear_*` fields."""
    return config | {
        "linear_num_key_heads": geometry.num_k_heads,
        "linear_num_value_heads": geometry.num_v_heads,
        "linear_key_head_dim": geometry.head_k_dim,
        "linear_value_head_dim": geometry.head_v_dim,
    }


def contiguous_conv_rows(geometry: Geometry) -> tuple[ChannelRows, ChannelRows, ChannelRows]:
    """Channel rows of q, k and v in one convolution: all of q, then all of k, then all of v."""
    heads, dim = geometry.num_k_heads, geometry.head_k_dim
    values = row_indices(geometry.num_v_heads, geometry.head_v_dim, start=2 * heads * dim)
    size = 2 * heads * dim + values.numel()
    return (
        ChannelRows("conv1d.weight", "q_conv", row_indices(heads, dim), size),
        ChannelRows("conv1d.weight", "k_conv", row_indices(heads, dim, start=heads * dim), size),
        ChannelRows("conv1d.weight", "v_conv", values, size, axis="value"),
    )


def norm_and_output_rows(geometry: Geometry) -> list[ChannelRows]:
    """Channel rows of the output norm and the columns of the output projection."""
    table, dim = row_indices(geometry.num_v_heads, geometry.head_v_dim), geometry.head_v_dim
    return [
        ChannelRows("norm.weight", "shared_norm", row_indices(1, dim), dim, axis="value"),
        ChannelRows("out_proj.weight", "o_proj", table, table.numel(), axis="value", dim=1),
    ]
