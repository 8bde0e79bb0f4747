"""Log-linear Mamba-2 (fla): Mamba-2 with a state for each level of the text, twice as long each.

in_proj: [ gate | x | B | C | dt | weights of the levels ].
"""

from dataclasses import replace
from typing import ClassVar

from ...errors import StatetrimError
from ...geometry import ChannelRows, Geometry
from ..contract import Config, RuntimeName, SoftmaxCache
from ..mamba2 import Mamba2
from ..recurrences import Recurrence

_LEVELS = 15  # weights a head: of the levels of 16,384 tokens
_STATES = 10  # that fla keeps of so many, in chunks of 64
_TILE = 64


class LogLinearMamba2(Mamba2):
    model_types: ClassVar[tuple[str, ...]] = ("log_linear_mamba2",)
    mixers: ClassVar[tuple[str, ...]] = ("backbone.layers.{layer}.mixer",)
    untouched: ClassVar[tuple[str, ...]] = (*Mamba2.untouched, "L")
    kernels: ClassVar[tuple[str, ...]] = ("hmamba_chunk_scan_combined",)

    def runtimes(self, config: Config) -> tuple[RuntimeName, ...]:
        return ("fla",)

    def geometry(self, config: Config) -> Geometry:
        """The states of 16,384 tokens, the most that its weights have levels for."""
        return replace(super().geometry(_plain(config)), copies=_STATES)

    def channels(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        levels = _LEVELS * geometry.num_v_heads
        return [
            replace(claim, size=claim.size + levels)
            if claim.tensor.startswith("in_proj")
            else claim
            for claim in super().channels(_plain(config), geometry)
        ]

    def resized(self, config: Config, geometry: Geometry) -> Config:
        values = geometry.head_v_dim
        if geometry.head_k_dim % _TILE or values & (values - 1):
            raise StatetrimError(
                f"fla's log-linear kernel takes keys in multiples of {_TILE} and values of a power "
                f"of two, not {geometry.head_k_dim} x {values}"
            )
        edited = super().resized(_plain(config), geometry)
        return edited | {"model_type": config["model_type"]}

    def cache_argument(self, config: Config) -> str:
        return "past_key_values"

    def softmax_cache(self, config: Config, geometry: Geometry) -> SoftmaxCache | None:
        return super().softmax_cache(_plain(config), geometry)

    def recurrence(self, kernel: str) -> Recurrence | None:
        return None


def _plain(config: Config) -> Config:
    """As Mamba-2 of transformers would read it."""
    return config | {"model_type": "mamba2"}


FAMILY = LogLinearMamba2()
