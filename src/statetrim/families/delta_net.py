"""DeltaNet (fla): the config gives widths as multiples of the hidden size."""

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, head_rows_from_channels, per_head_rows
from ..errors import StatetrimError
from ._fla import HEAD_GATES, FlaFamily, conv_fields, linear_layers, query_key_rows, value_rows
from .contract import Config, float_field, int_field
from .recurrences import Recurrence, delta_rule


class DeltaNet(FlaFamily):
    model_types = ("delta_net",)
    portable_types = half_precision_types = model_types
    unchanged_tensors = HEAD_GATES
    kernels = ("chunk_delta_rule", "fused_recurrent_delta_rule")

    def geometry(self, config: Config) -> Geometry:
        heads = int_field(config, "num_heads", default=16)
        return Geometry(
            layers=linear_layers(config, default_total=24),
            num_k_heads=heads,
            num_v_heads=heads,
            head_k_dim=head_dim(config, "expand_k", heads),
            head_v_dim=head_dim(config, "expand_v", heads),
            **conv_fields(config, 2 * heads, heads),
        )

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        return query_key_rows(geometry) + value_rows(geometry)

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        gates = per_head_rows(HEAD_GATES, geometry.num_v_heads)
        return head_rows_from_channels(self.channel_rows(config, geometry), gates)

    def resized(self, config: Config, geometry: Geometry) -> Config:
        hidden = int_field(config, "hidden_size", default=2048)
        return config | {
            "num_heads": geometry.num_v_heads,
            "expand_k": geometry.num_k_heads * geometry.head_k_dim / hidden,
            "expand_v": geometry.num_v_heads * geometry.head_v_dim / hidden,
        }

    def recurrence(self, kernel: str) -> Recurrence:
        return delta_rule


def head_dim(config: Config, field: str, heads: int, default: float = 1.0) -> int:
    """`hidden_size * expand / heads`; refuses a result that is not whole, as fla does."""
    hidden = int_field(config, "hidden_size", default=2048)
    total = hidden * float_field(config, field, default)
    width = round(total)
    if abs(total - width) > 1e-9 * total or width < heads or width % heads:
        raise StatetrimError(
            f"config field {field!r} gives {total:g} channels, which {heads} heads cannot share"
        )
    return width // heads


FAMILY = DeltaNet()
