"""Shared by the Gated DeltaNet families of transformers: their `linear_*` config fields."""

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, head_rows_from_channels, per_head_rows, row_indices
from .contract import Config, Family, int_field, layer_types_field, layers_of_type, num_layers
from .recurrences import Recurrence, delta_rule


class LinearFieldsFamily(Family):
    """A model of transformers with Gated DeltaNet layers; the defaults are those of Qwen3-Next."""

    kernels = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
    positional_arguments = dict.fromkeys(kernels, ("query", "key", "value"))

    def geometry(self, config: Config) -> Geometry:
        """By the `linear_*` fields, with the stock class's defaults. Linear layers are listed in
        `layer_types`, or all except every `full_attention_interval`-th."""
        layer_types = layer_types_field(config, "layer_types")
        if layer_types is None:
            interval = int_field(config, "full_attention_interval", default=4)
            numbers = range(1, num_layers(config) + 1)
            layer_types = ["linear_attention" if n % interval else "other" for n in numbers]
        key_heads = int_field(config, "linear_num_key_heads", default=16)
        value_heads = int_field(config, "linear_num_value_heads", default=32)
        return Geometry(
            layers=layers_of_type(layer_types, "linear_attention"),
            num_k_heads=key_heads,
            num_v_heads=value_heads,
            head_k_dim=int_field(config, "linear_key_head_dim", default=128),
            head_v_dim=int_field(config, "linear_value_head_dim", default=128),
            conv_key_heads=2 * key_heads,
            conv_value_heads=value_heads,
            conv_width=int_field(config, "linear_conv_kernel_dim", default=4),
        )

    def resized(self, config: Config, geometry: Geometry) -> Config:
        """Sets both widths: OLMo-Hybrid's default of a value width depends on the key width."""
        return config | {
            "linear_num_key_heads": geometry.num_k_heads,
            "linear_num_value_heads": geometry.num_v_heads,
            "linear_key_head_dim": geometry.head_k_dim,
            "linear_value_head_dim": geometry.head_v_dim,
        }

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        gates = per_head_rows(self.unchanged_tensors, geometry.num_v_heads)
        return head_rows_from_channels(self.channel_rows(config, geometry), gates)

    def recurrence(self, kernel: str) -> Recurrence:
        return delta_rule


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
