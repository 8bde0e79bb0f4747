"""DeltaNet (fla): widths are given as multiples of the hidden size."""

from ..errors import StatetrimError
from ..geometry import ChannelRows, Geometry
from ._fla import (
    HEAD_GATES,
    FlaFamily,
    conv_fields,
    linear_layers,
    separate_projections,
    separate_values,
)
from ._heads import head_claims, one_each
from .contract import MOST_HEADS, Config, checked, count, number
from .recurrences import Recurrence, delta_rule


class DeltaNet(FlaFamily):
    model_types = ("delta_net",)
    portable_types = half_types = model_types
    untouched = HEAD_GATES
    kernels = ("chunk_delta_rule", "fused_recurrent_delta_rule")

    def geometry(self, config: Config) -> Geometry:
        heads = count(config, "num_heads", default=16, most=MOST_HEADS)
        return checked(
            Geometry(
                layers=linear_layers(config, default=24),
                num_k_heads=heads,
                num_v_heads=heads,
                head_k_dim=head_dim(config, "expand_k", heads),
                head_v_dim=head_dim(config, "expand_v", heads),
                **conv_fields(config, 2 * heads, heads),
            )
        )

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        return separate_projections(geometry) + separate_values(geometry)

    def heads(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        gates = one_each(HEAD_GATES, geometry.num_v_heads)
        return head_claims(self.channels(config, geometry), gates)

    def resized(self, config: Config, geometry: Geometry) -> Config:
        hidden = count(config, "hidden_size", default=2048)
        return config | {
            "num_heads": geometry.num_v_heads,
            "expand_k": geometry.num_k_heads * geometry.head_k_dim / hidden,
            "expand_v": geometry.num_v_heads * geometry.head_v_dim / hidden,
        }

    def recurrence(self, kernel: str) -> Recurrence:
        return delta_rule


def head_dim(config: Config, field: str, heads: int, default: float = 1.0) -> int:
    """`hidden_size * expand / heads`, which fla requires to come out whole."""
    hidden = count(config, "hidden_size", default=2048)
    total = hidden * number(config, field, default)
    width = round(total)
    if abs(total - width) > 1e-9 * total or width < heads or width % heads:
        raise StatetrimError(
            f"config field {field!r} gives {total:g} channels, which {heads} heads cannot share"
        )
    return width // heads


FAMILY = DeltaNet()
