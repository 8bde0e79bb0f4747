"""LightNet (fla): each key channel is normalised over time; queries pass through SiLU."""

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows
from ._fla import PROJECTIONS, FlaFamily, conv_fields, linear_layers, output_rows, query_key_rows
from .contract import Config, int_field


class LightNet(FlaFamily):
    model_types = ("lightnet",)
    unchanged_tensors = (
        "v_proj.weight", "v_conv1d.weight", "v_conv1d.bias", "g_proj.0.weight", "g_proj.1.weight",
        "g_norm.weight",
    )  # fmt: skip
    kernels = ("chunk_lightnet", "fused_recurrent_lightnet")
    normalizes_keys = False
    state_key_axis = -1
    projections = (*PROJECTIONS, "g_proj.0", "g_proj.1")
    read_projections = ("o_proj",)  # by the kernel of the norm

    def geometry(self, config: Config) -> Geometry:
        """As in fla, a null `num_heads` or `expand_ratio` (key width) follows from the other."""
        hidden = int_field(config, "hidden_size", default=2048)
        fields = {"expand_ratio": 128} | config
        if config.get("num_heads") is None:
            heads = max(1, hidden // int_field(fields, "expand_ratio"))
        else:
            heads = int_field(config, "num_heads")
        value_width = max(1, hidden // heads)
        return Geometry(
            layers=linear_layers(config, default_total=24),
            num_k_heads=heads,
            num_v_heads=heads,
            head_k_dim=int_field(fields, "expand_ratio", default=value_width),
            head_v_dim=value_width,
            **conv_fields(config, 2 * heads, heads, default=False),
        )

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        return [*query_key_rows(geometry), output_rows(geometry)]

    def value_refusal(self, config: Config) -> str | None:
        return (
            "their width is the hidden size divided by the heads, so no config says that they are "
            "fewer"
        )

    def resized(self, config: Config, geometry: Geometry) -> Config:
        return config | {"num_heads": geometry.num_k_heads, "expand_ratio": geometry.head_k_dim}


FAMILY = LightNet()
