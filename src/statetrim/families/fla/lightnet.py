"""LightNet (fla): keys are normalised over time, each channel by itself; queries pass a SiLU."""

from ...geometry import ChannelRows, Geometry, row_indices
from .._fla import PROJECTIONS, FlaFamily, conv_fields, linear_layers, separate_projections
from ..contract import MOST_CHANNELS, MOST_HEADS, Config, checked, count


class LightNet(FlaFamily):
    model_types = ("lightnet",)
    untouched = (
        "v_proj.weight",
        "v_conv1d.weight",
        "v_conv1d.bias",
        "g_proj.0.weight",
        "g_proj.1.weight",
        "g_norm.weight",
    )
    kernels = ("chunk_lightnet", "fused_recurrent_lightnet")
    normalizes_keys = False
    state_key_axis = -1
    projections = (*PROJECTIONS, "g_proj.0", "g_proj.1")

    def geometry(self, config: Config) -> Geometry:
        """Of heads and key width fla computes the one that is null from the other."""
        hidden = count(config, "hidden_size", default=2048)
        given = {"expand_ratio": 128} | config
        if config.get("num_heads") is None:
            heads = max(1, hidden // count(given, "expand_ratio", most=MOST_CHANNELS))
        else:
            heads = count(config, "num_heads", most=MOST_HEADS)
        values = max(1, hidden // heads)
        return checked(
            Geometry(
                layers=linear_layers(config, default=24),
                num_k_heads=heads,
                num_v_heads=heads,
                head_k_dim=count(given, "expand_ratio", default=values, most=MOST_CHANNELS),
                head_v_dim=values,
                **conv_fields(config, 2 * heads, heads, default=False),
            )
        )

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        # Values cannot be cut, but where they are read is known, so that calibration can record it.
        table = row_indices(geometry.num_v_heads, geometry.head_v_dim)
        output = ChannelRows("o_proj.weight", "o_proj", table, table.numel(), axis="value", dim=1)
        return [*separate_projections(geometry), output]

    def value_refusal(self, config: Config) -> str | None:
        return (
            "their width is the hidden size divided by the heads, so no config says that they are "
            "fewer"
        )

    def resized(self, config: Config, geometry: Geometry) -> Config:
        return config | {"num_heads": geometry.num_k_heads, "expand_ratio": geometry.head_k_dim}


FAMILY = LightNet()
