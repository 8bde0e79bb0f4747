"""DeltaNet (fla): the config gives widths as multiples of the hidden size."""

from ..cut.geometry import Geometry
from ..errors import StatetrimError
from ._fla import FlaFamily, conv_fields, linear_layers
from .contract import Config, float_field, int_field


class DeltaNet(FlaFamily):
    model_types = ("delta_net",)
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

    def resized(self, config: Config, geometry: Geometry) -> Config:
        hidden = int_field(config, "hidden_size", default=2048)
        return config | {
            "num_heads": geometry.num_v_heads,
            "expand_k": geometry.num_k_heads * geometry.head_k_dim / hidden,
            "expand_v": geometry.num_v_heads * geometry.head_v_dim / hidden,
        }

    def refuses_float32(self, config: Config) -> bool:
        return True


def head_dim(config: Config, field: str, heads: int) -> int:
    """`hidden_size * expand / heads`; refuses a result that is not whole, as fla does."""
    hidden = int_field(config, "hidden_size", default=2048)
    total = hidden * float_field(config, field, 1.0)
    width = round(total)
    if abs(total - width) > 1e-9 * total or width < heads or width % heads:
        raise StatetrimError(
            f"config field {field!r} gives {total:g} channels, which {heads} heads cannot share"
        )
    return width // heads


FAMILY = DeltaNet()
