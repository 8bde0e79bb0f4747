"""From the memory that a sequence may take to the channels that each head keeps."""

from collections.abc import Callable

from ..errors import StatetrimError
from ..geometry import KERNEL_TILE, Geometry
from ..maths.units import MIB


def widest_that_fits(
    geometry: Geometry, max_bytes: float, count_bytes: Callable[[Geometry], int]
) -> Geometry:
    """The geometry with the most key channels of which a sequence takes at most `max_bytes`.

    `count_bytes` returns the bytes of one sequence. Wide heads keep multiples of 16 channels, to
    which kernels pad them. Raises StatetrimError if the model fits already or one channel per head
    is too much.
    """
    if count_bytes(geometry) <= max_bytes:
        raise StatetrimError(
            f"a sequence takes {count_bytes(geometry) / MIB:.1f} MiB now, which is within the "
            f"{max_bytes / MIB:.1f} MiB asked for; nothing needs to be cut"
        )
    step = KERNEL_TILE if geometry.head_k_dim >= 4 * KERNEL_TILE else 1
    candidate = geometry
    for width in range((geometry.head_k_dim - 1) // step * step, 0, -step):
        candidate = geometry.resized(width)
        if count_bytes(candidate) <= max_bytes:
            return candidate
    raise StatetrimError(
        f"even with {candidate.head_k_dim} channels per head a sequence takes "
        f"{count_bytes(candidate) / MIB:.1f} MiB, more than the {max_bytes / MIB:.1f} MiB asked for"
    )
