"""Gated DeltaNet, with a preconditioner too, Comba, Gated DeltaProduct (fla): `head_dim` for keys,
`expand_v` for values."""

from ..geometry import ChannelRows, Geometry, row_indices
from ._fla import (
    HEAD_GATES,
    NO_HEADS,
    PRECONDITIONER,
    PROJECTIONS,
    FlaFamily,
    conv_fields,
    expand_v,
    head_v_dim,
    linear_layers,
    separate_projections,
    separate_values,
)
from ._heads import head_claims, one_each
from .contract import MOST_CHANNELS, MOST_HEADS, Config, checked, count, number
from .recurrences import Recurrence, delta_rule


class GatedDeltaNet(FlaFamily):
    model_types = ("gated_deltanet", "precond_gated_deltanet", "comba", "gated_deltaproduct")
    portable_types = ("gated_deltanet",)
    half_types = ("gated_deltaproduct",)
    untouched = (*HEAD_GATES, *PRECONDITIONER, "D", "decay")  # the last two: Comba's, one a head
    kernels = (
        "chunk_gated_delta_rule",
        "fused_recurrent_gated_delta_rule",
        "chunk_comba",
        "fused_recurrent_comba",
        "chunk_gated_delta_product",
        "chunk_precond_gated_delta_rule",
        "fused_recurrent_precond_gated_delta_rule",
    )
    projections = (*PROJECTIONS, "a_atk_proj", "b_atk_proj")

    def geometry(self, config: Config) -> Geometry:
        heads = count(config, "num_heads", default=6, most=MOST_HEADS)
        # DeltaProduct's model class never passes num_v_heads on to its layers.
        product = config.get("model_type") == "gated_deltaproduct"
        value_heads = heads if product else value_head_count(config, heads)
        return head_dim_geometry(
            config,
            layers=linear_layers(config, default=21),
            heads=heads,
            value_heads=value_heads,
            default_dim=256,
            default_expand=2.0,
            householder=householder_steps(config),
        )

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        steps = householder_steps(config)
        return separate_projections(geometry, steps) + separate_values(geometry, steps)

    def heads(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        heads, steps = geometry.num_v_heads, householder_steps(config)
        gates = [name for name in HEAD_GATES if name != "b_proj.weight"]
        strengths = [
            ChannelRows("b_proj.weight", "gate", table, steps * heads, axis="value")
            for table in (row_indices(heads, 1, start=step * heads) for step in range(steps))
        ]
        return head_claims(
            self.channels(config, geometry),
            strengths,
            one_each(gates, heads),
            one_each(("D", "decay"), geometry.num_k_heads, axis="key"),
        )

    def head_refusal(self, config: Config) -> str | None:
        return NO_HEADS if "precond" in config["model_type"] else None

    def resized(self, config: Config, geometry: Geometry) -> Config:
        return resized_head_dim(config, geometry)

    def recurrence(self, kernel: str) -> Recurrence | None:
        plain = ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule")
        return delta_rule if kernel in plain else None


def value_head_count(config: Config, heads: int) -> int:
    return count(config, "num_v_heads", default=heads, most=MOST_HEADS)


def householder_steps(config: Config) -> int:
    """How many keys a DeltaProduct token writes; one in every other model."""
    if config.get("model_type") != "gated_deltaproduct":
        return 1
    return count(config, "num_householder", default=1, most=16)


def head_dim_geometry(
    config: Config,
    *,
    layers: tuple[int, ...],
    heads: int,
    value_heads: int,
    default_dim: int,
    default_expand: float,
    householder: int = 1,
) -> Geometry:
    """The state of a config with `head_dim` and `expand_v`."""
    dim = count(config, "head_dim", default=default_dim, most=MOST_CHANNELS)
    return checked(
        Geometry(
            layers=layers,
            num_k_heads=heads,
            num_v_heads=value_heads,
            head_k_dim=dim,
            head_v_dim=head_v_dim(config, dim, number(config, "expand_v", default_expand)),
            **conv_fields(config, (1 + householder) * heads, householder * value_heads),
        )
    )


def resized_head_dim(config: Config, geometry: Geometry) -> Config:
    """Both widths change together: `head_dim` alone would shrink the values as well."""
    grouped = config.get("num_v_heads") is not None
    return config | {
        "num_heads": geometry.num_k_heads,
        **({"num_v_heads": geometry.num_v_heads} if grouped else {}),
        "head_dim": geometry.head_k_dim,
        "expand_v": expand_v(geometry.head_k_dim, geometry.head_v_dim),
    }


FAMILY = GatedDeltaNet()
