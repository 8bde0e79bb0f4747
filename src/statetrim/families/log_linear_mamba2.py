"""Log-linear Mamba-2 (fla): one state per level; each level covers twice the tokens of the last.

in_proj: [ gate | x | B | C | dt | weights of the levels ].
"""

from dataclasses import replace
from typing import ClassVar

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows
from ..errors import StatetrimError
from .contract import Config, KVCacheSize, RuntimeName
from .mamba2 import Mamba2
from .recurrences import Recurrence

_NUM_LEVELS = 15  # level weights per head, enough for 16,384 tokens
_NUM_STATES = 10  # that fla stores for 16,384 tokens, in chunks of 64
_TILE = 64  # the kernel takes key widths that are multiples of it


class LogLinearMamba2(Mamba2):
    model_types: ClassVar[tuple[str, ...]] = ("log_linear_mamba2",)
    mixer_prefixes: ClassVar[tuple[str, ...]] = ("backbone.layers.{layer}.mixer",)
    unchanged_tensors: ClassVar[tuple[str, ...]] = (*Mamba2.unchanged_tensors, "L")
    kernels: ClassVar[tuple[str, ...]] = ("hmamba_chunk_scan_combined",)

    def runtimes(self, config: Config) -> tuple[RuntimeName, ...]:
        return ("fla",)

    def geometry(self, config: Config) -> Geometry:
        """Counts the states at 16,384 tokens, the longest text that the level weights cover."""
        return replace(super().geometry(_as_mamba2(config)), copies=_NUM_STATES)

    def channel_rows(self, config: Config, geometry: Geometry) -> list[ChannelRows]:
        level_rows = _NUM_LEVELS * geometry.num_v_heads
        channel_rows = []
        for entry in super().channel_rows(_as_mamba2(config), geometry):
            extra = level_rows if entry.tensor.startswith("in_proj") else 0
            channel_rows.append(replace(entry, size=entry.size + extra))
        return channel_rows

    def resized(self, config: Config, geometry: Geometry) -> Config:
        """A copy of the config with the widths of `geometry`. Refuses key widths that are not a
        multiple of 64, and value widths that are not a power of two, which fla's kernel does not
        take."""
        value_width = geometry.head_v_dim
        if geometry.head_k_dim % _TILE or value_width & (value_width - 1):
            raise StatetrimError(
                f"fla's log-linear kernel takes keys in multiples of {_TILE} and values of a power "
                f"of two, not {geometry.head_k_dim} x {value_width}"
            )
        edited = super().resized(_as_mamba2(config), geometry)
        return edited | {"model_type": config["model_type"]}

    def cache_argument(self, config: Config) -> str:
        return "past_key_values"

    def kv_cache_size(self, config: Config, geometry: Geometry) -> KVCacheSize | None:
        return super().kv_cache_size(_as_mamba2(config), geometry)

    def recurrence(self, kernel: str) -> Recurrence | None:
        return None


def _as_mamba2(config: Config) -> Config:
    """The config with the model type of transformers' Mamba-2, whose field names it shares."""
    return config | {"model_type": "mamba2"}


FAMILY = LogLinearMamba2()
