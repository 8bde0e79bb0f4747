"""From the memory that a sequence may take to the channels that each head keeps."""

from collections.abc import Callable, Iterator
from math import floor

from ..errors import StatetrimError
from ..geometry import KERNEL_TILE, Geometry
from ..maths.units import GIB, MIB


def widest_that_fits(
    geometry: Geometry, max_bytes: float, count_bytes: Callable[[Geometry], int], *, square: bool
) -> Geometry:
    """The geometry with the most key channels of which a sequence takes at most `max_bytes`.

    `count_bytes` returns the bytes of one sequence. Heads of 64 or more channels keep multiples of
    16, to which kernels pad them. Values keep their width, or with `square` get that of the keys.
    Raises StatetrimError if the model fits already (unless `square` has a rectangular state to
    change), or if even the narrowest such width is too much.
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
    """Bytes that each of `sequences` may take of `memory_gib`, not rounded. Raises StatetrimError
    unless both are positive and the memory is at most 2^20 GiB."""
    if not 0 < memory_gib <= 2**20 or sequences < 1:
        raise StatetrimError("--memory-gib and --sequences must both be positive")
    return floor(memory_gib * GIB) / sequences


def _is_rectangular(geometry: Geometry) -> bool:
    return geometry.head_k_dim != geometry.head_v_dim


def _widths(geometry: Geometry, square: bool) -> Iterator[int]:
    """Widths to try, the widest first: all below the current one, or from that of the narrower axis
    on if a rectangular state becomes square; only multiples of 16 if that is 64 or more."""
    width = min(geometry.head_k_dim, geometry.head_v_dim) if square else geometry.head_k_dim
    step = KERNEL_TILE if width >= 4 * KERNEL_TILE else 1
    first = width if square and _is_rectangular(geometry) else width - 1
    yield from range(first // step * step, 0, -step)
