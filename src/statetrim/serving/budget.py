"""From what a user has to what may be kept: memory a sequence may take -> channels per head."""

from collections.abc import Callable, Iterator
from math import floor

from ..errors import StatetrimError
from ..geometry import KERNEL_TILE, Geometry
from ..maths.units import GIB, MIB


def widest_that_fits(
    geometry: Geometry, most_bytes: float, bytes_of: Callable[[Geometry], int], *, square: bool
) -> Geometry:
    """The widest cut whose sequence takes at most `most_bytes`; `bytes_of` counts a sequence's.

    Kernels pad heads to multiples of 16, so wide heads are cut to those. With `square` keys and
    values are cut to the same width.
    """
    if bytes_of(geometry) <= most_bytes and not (square and _is_oblong(geometry)):
        raise StatetrimError(
            f"a sequence takes {bytes_of(geometry) / MIB:.1f} MiB now, which is within the "
            f"{most_bytes / MIB:.1f} MiB asked for; nothing needs to be cut"
        )
    narrowest = geometry
    for width in _widths(geometry, square):
        narrowest = geometry.resized(width, width if square else None)
        if bytes_of(narrowest) <= most_bytes:
            return narrowest
    raise StatetrimError(
        f"even with {narrowest.head_k_dim} channels per head a sequence takes "
        f"{bytes_of(narrowest) / MIB:.1f} MiB, more than the {most_bytes / MIB:.1f} MiB asked for"
    )


def share_of(memory_gib: float, sequences: int) -> float:
    """Bytes one of `sequences` may take."""
    if not 0 < memory_gib <= 2**20 or sequences < 1:
        raise StatetrimError(
            "--memory-gib and --sequences must both be more than nothing, and numbers that exist"
        )
    return floor(memory_gib * GIB) / sequences


def _is_oblong(geometry: Geometry) -> bool:
    return geometry.head_k_dim != geometry.head_v_dim


def _widths(geometry: Geometry, square: bool) -> Iterator[int]:
    """Widths below the present one, widest first."""
    wide = min(geometry.head_k_dim, geometry.head_v_dim) if square else geometry.head_k_dim
    step = KERNEL_TILE if wide >= 4 * KERNEL_TILE else 1
    first = wide if square and _is_oblong(geometry) else wide - 1
    yield from range(first // step * step, 0, -step)
