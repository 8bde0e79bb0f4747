"""Gated DeltaNet (fla): the key width is `head_dim`, the value width `head_dim * expand_v`."""

from typing import ClassVar

from ..cut.geometry import Geometry
from ._fla import FlaFamily, conv_fields, expand_v, head_v_dim, linear_layers
from .contract import Config, float_field, int_field


class HeadDimFamily(FlaFamily):
    """Models whose config has `head_dim` and `expand_v`; subclasses give the stock defaults."""

    default_layers: ClassVar[int]
    default_heads: ClassVar[int]
    default_head_dim: ClassVar[int]
    default_expand_v: ClassVar[float]

    def geometry(self, config: Config) -> Geometry:
        heads = int_field(config, "num_heads", default=self.default_heads)
        value_heads = int_field(config, "num_v_heads", default=heads)
        dim = int_field(config, "head_dim", default=self.default_head_dim)
        return Geometry(
            layers=linear_layers(config, self.default_layers),
            num_k_heads=heads,
            num_v_heads=value_heads,
            head_k_dim=dim,
            head_v_dim=head_v_dim(dim, float_field(config, "expand_v", self.default_expand_v)),
            **conv_fields(config, 2 * heads, value_heads),
        )

    def resized(self, config: Config, geometry: Geometry) -> Config:
        """Always sets both widths: with a new `head_dim` alone, `expand_v` would change the value
        width as well."""
        grouped = config.get("num_v_heads") is not None
        return config | {
            "num_heads": geometry.num_k_heads,
            **({"num_v_heads": geometry.num_v_heads} if grouped else {}),
            "head_dim": geometry.head_k_dim,
            "expand_v": expand_v(geometry.head_k_dim, geometry.head_v_dim),
        }


class GatedDeltaNet(HeadDimFamily):
    model_types = ("gated_deltanet",)
    kernels = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")

    default_layers, default_heads, default_head_dim, default_expand_v = 21, 6, 256, 2.0


FAMILY = GatedDeltaNet()
