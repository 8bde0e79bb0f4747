"""RWKV-6 (fla): a decay and a bonus per key channel, and no key normalisation."""

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, Role, row_indices
from ._fla import FlaFamily, linear_layers, output_rows
from .contract import Config, int_field
from .delta_net import head_dim


class RWKV6(FlaFamily):
    model_types = ("rwkv6",)
    unchanged_tensors = (
        "x_proj.0.linear.weight", "x_proj.0.mu", "x_proj.2.weight", "x_bias",
        "w_proj.linear.lora.0.weight", "v_proj.linear.weight", "g_proj.linear.weight",
        "g_norm.weight", "g_norm.bias",
    )  # fmt: skip
    kernels = ("chunk_rwkv6", "fused_recurrent_rwkv6")
    query_and_key = (("r", "k"),)
    normalizes_keys = False
    scales_queries = False
    flattened_tensors = ("bonus",)  # [heads, channels]
    projections = (
        *(f"{name}_proj.linear" for name in "rkvg"), "w_proj.linear.lora.0",
        "w_proj.linear.lora.2", "x_proj.0.linear", "x_proj.2", "o_proj",
    )  # fmt: skip
    read_projections = ("x_proj.2",)

    def geometry(self, config: Config) -> Geometry:
        heads = int_field(config, "num_heads", default=4)
        return Geometry(
            layers=linear_layers(config, default_total=24),
            num_k_heads=heads,
            num_v_heads=heads,
            head_k_dim=head_dim(config, "expand_k", heads, default=0.5),
            head_v_dim=head_dim(config, "expand_v", heads),
        )

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        """Rows of queries (receptance), keys, their decays and bonus, and `output_rows`."""
        table = row_indices(geometry.num_k_heads, geometry.head_k_dim)
        roles: list[tuple[str, Role]] = [
            ("r_proj.linear.weight", "q_proj"),
            ("k_proj.linear.weight", "k_proj"),
            ("w_proj.linear.lora.2.weight", "gate"),
            ("w_proj.linear.lora.2.bias", "gate"),
            ("bonus", "gate"),
        ]
        key_rows = [ChannelRows(name, role, table, table.numel()) for name, role in roles]
        return [*key_rows, output_rows(geometry)]

    def value_refusal(self, config: Config) -> str | None:
        return (
            "the output norm subtracts the mean over the channels of a head, so that without some "
            "of them all others change"
        )

    def resized(self, config: Config, geometry: Geometry) -> Config:
        hidden = int_field(config, "hidden_size", default=2048)
        return config | {"expand_k": geometry.num_k_heads * geometry.head_k_dim / hidden}


FAMILY = RWKV6()
