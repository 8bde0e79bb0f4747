"""Gated DeltaNet (also preconditioned), Comba and Gated DeltaProduct (fla): the key width is
`head_dim`, the value width `head_dim * expand_v`."""

from typing import ClassVar

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, head_rows_from_channels, per_head_rows, row_indices
from ._fla import (
    HEAD_GATES,
    PRECONDITIONER_TENSORS,
    PROJECTIONS,
    FlaFamily,
    conv_fields,
    expand_v,
    head_v_dim,
    linear_layers,
    query_key_rows,
    value_rows,
)
from .contract import Config, float_field, int_field
from .recurrences import Recurrence, delta_rule


class HeadDimFamily(FlaFamily):
    """Models whose config has `head_dim` and `expand_v`; subclasses give the stock defaults."""

    default_layers: ClassVar[int]
    default_heads: ClassVar[int]
    default_head_dim: ClassVar[int]
    default_expand_v: ClassVar[float]

    def geometry(self, config: Config) -> Geometry:
        """The convolutions have the keys and values of all Householder steps."""
        heads = int_field(config, "num_heads", default=self.default_heads)
        # DeltaProduct's model class never passes num_v_heads on to its layers.
        is_delta_product = config.get("model_type") == "gated_deltaproduct"
        value_heads = heads if is_delta_product else int_field(config, "num_v_heads", default=heads)
        dim = int_field(config, "head_dim", default=self.default_head_dim)
        steps = householder_steps(config)
        return Geometry(
            layers=linear_layers(config, self.default_layers),
            num_k_heads=heads,
            num_v_heads=value_heads,
            head_k_dim=dim,
            head_v_dim=head_v_dim(dim, float_field(config, "expand_v", self.default_expand_v)),
            **conv_fields(config, (1 + steps) * heads, steps * value_heads),
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

    def head_refusal(self, config: Config) -> str | None:
        if "precond" not in config["model_type"]:
            return None
        return "how its preconditioner's numbers belong to heads is not worked out"


class GatedDeltaNet(HeadDimFamily):
    model_types = ("gated_deltanet", "precond_gated_deltanet", "comba", "gated_deltaproduct")
    portable_types = ("gated_deltanet",)
    half_precision_types = ("gated_deltaproduct",)
    # D and decay are Comba's: one number per key head.
    unchanged_tensors = (*HEAD_GATES, *PRECONDITIONER_TENSORS, "D", "decay")
    kernels = (
        "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule", "chunk_comba",
        "fused_recurrent_comba", "chunk_gated_delta_product", "chunk_precond_gated_delta_rule",
        "fused_recurrent_precond_gated_delta_rule",
    )  # fmt: skip
    other_keys = ("p",)  # Comba's
    projections = (*PROJECTIONS, "a_atk_proj", "b_atk_proj")

    default_layers, default_heads, default_head_dim, default_expand_v = 21, 6, 256, 2.0

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        steps = householder_steps(config)
        return query_key_rows(geometry, steps) + value_rows(geometry, steps)

    def head_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        heads, steps = geometry.num_v_heads, householder_steps(config)
        gates = [name for name in HEAD_GATES if name != "b_proj.weight"]
        beta_rows = []
        for step in range(steps):
            table = row_indices(heads, 1, start=step * heads)
            entry = ChannelRows("b_proj.weight", "gate", table, steps * heads, axis="value")
            beta_rows.append(entry)
        return head_rows_from_channels(
            self.channel_rows(config, geometry),
            beta_rows,
            per_head_rows(gates, heads),
            per_head_rows(("D", "decay"), geometry.num_k_heads, axis="key"),
        )

    def recurrence(self, kernel: str) -> Recurrence | None:
        known_kernels = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
        return delta_rule if kernel in known_kernels else None


def householder_steps(config: Config) -> int:
    """How many keys a token of DeltaProduct writes (its Householder steps); 1 in other models."""
    if config.get("model_type") != "gated_deltaproduct":
        return 1
    return int_field(config, "num_householder", default=1, maximum=16)


FAMILY = GatedDeltaNet()
