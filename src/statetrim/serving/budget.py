"""From what a user has to what may be kept: memory a sequence may take -> channels per head."""

from collections.abc import Callable, Iterator
from math import floor

from ..errors import StatetrimError
from ..geometry import KERNEL_TILE, Geometry
from ..maths.units import GIB, MIB


def widest_that_fits(
    geometry: Geometry, max_bytes: float, count_bytes: Callable[[Geometry], int], *, square: bool
) -> Geometry:
    """The widest cut whose sequence takes at most `most_bytes`; `bytes_of` counts a sequence's.

    Kernels pad heads to multiples of 16, so wide heads are cut to those. With `square` keys and
    values are cut to the same width.
    """
    if count_bytes(geometry) <= max_bytes and not (square and _is_rectangular(geometry)):
        raise StatetrimError(
            f"a sequence takes {count_bytes(geometry) / MIB:.1f} MiB now, which is within the "
            f"{max_bytes / MIB:.1f} MiB asked for; nothing needs to be cut"
        )
    candidate = geometry
    for width in _widths(geometry, square):
        candidate = geometry.resized(width, width if square else None)
        if count_bytes(candidate) <= max_bytes:
            return candidate
    raise StatetrimError(
        f"even with {candidate.head_k_dim} channels per head a sequence takes "
        f"{count_bytes(candidate) / MIB:.1f} MiB, more than the {max_bytes / MIB:.1f} MiB asked for"
    )


def bytes_per_sequence(memory_gib: float, sequences: int) -> float:
    """Bytes one of `sequences` may take."""
    if not 0 < memory_gib <= 2**20 or sequences < 1:
        raise StatetrimError(
            "--memory-gib and --sequences must both be more than nothing, and numbers that exist"
        )
    return floor(memory_gib * GIB) / sequences


def _is_rectangular(geometry: Geometry) -> bool:
    return geometry.head_k_dim != geometry.head_v_dim


def _widths(geometry: Geometry, square: bool) -> Iterator[int]:
    """Widths below the present one, widest first."""
    width = min(geometry.head_k_dim, geometry.head_v_dim) if square else geometry.head_k_dim
    step = KERNEL_TILE if width >= 4 * KERNEL_TILE else 1
    first = width if square and _is_rectangular(geometry) else width - 1
    yield from range(first // step * step, 0, -step)
