"""State sizes to compare a cut with: the original and the cut, each in float32 and bfloat16."""

from dataclasses import dataclass

from ...errors import StatetrimError
from ...geometry import Geometry
from ...storage.checkpoint import Checkpoint
from ..options import ServingOptions
from .arithmetic import moved_bytes
from .cache_model import cache_model
from .compare import DEFAULT_CONTEXT, DEFAULT_MEMORY_GIB, DTYPE_BYTES, settings_for

MEMORY_GIB = DEFAULT_MEMORY_GIB
CONTEXT = DEFAULT_CONTEXT


@dataclass(frozen=True)
class Alternative:
    """One way to store the state of a sequence."""

    name: str
    state_bytes: int
    sequences: int | None = None  # of CONTEXT tokens in MEMORY_GIB; None if unknown


def alternatives(
    before: Geometry, after: Geometry, model: Checkpoint | None = None
) -> list[Alternative]:
    """The original and the cut, each in float32 and bfloat16: four entries in this order.

    With `model`, the original, they have capacities (sequences of CONTEXT tokens in MEMORY_GIB, by
    their bytes in transformers), None where unknown.
    """
    result: list[Alternative] = []
    for name, geometry in (("original", before), ("cut", after)):
        for dtype in ("float32", "bfloat16"):
            size = geometry.state_numel * DTYPE_BYTES[dtype]
            fitting = None if model is None else _sequences(model, geometry, dtype)
            result.append(Alternative(f"{name}, {dtype}", size, fitting))
    return result


def _sequences(model: Checkpoint, geometry: Geometry, state_dtype: str) -> int | None:
    """Sequences that fit by their bytes; None if the KV cache is not known."""
    try:
        caches = cache_model(model, geometry)
    except StatetrimError:
        return None
    settings = settings_for(model, ServingOptions(), state_dtype)
    return int(settings.memory // moved_bytes(caches, settings, geometry.conv_width))
