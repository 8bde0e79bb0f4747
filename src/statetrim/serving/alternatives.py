"""State sizes to compare a cut with: the original and the cut, each in float32 and bfloat16."""

from dataclasses import dataclass

from ..errors import StatetrimError
from ..geometry import Geometry
from ..storage.checkpoint import Checkpoint
from .capacity import DTYPE_BYTES
from .deployment import DEFAULT_CONTEXT, deployment
from .state_size import served_dtype

MEMORY_GIB = 16.0
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

    With `model`, the original, they have capacities (sequences of CONTEXT tokens in MEMORY_GIB),
    None where unknown.
    """
    counts = _sequence_counts(model, after) if model is not None else [None] * 4
    result: list[Alternative] = []
    for name, geometry in (("original", before), ("cut", after)):
        for dtype in ("float32", "bfloat16"):
            size = geometry.state_numel * DTYPE_BYTES[dtype]
            result.append(Alternative(f"{name}, {dtype}", size, counts[len(result)]))
    return result


def _sequence_counts(model: Checkpoint, after: Geometry) -> list[int | None]:
    """Sequences that fit with each alternative, in their order; four times None if the capacity
    cannot be computed."""
    try:
        result = deployment(
            model, after, dtype=served_dtype(model), memory_gib=MEMORY_GIB, context=CONTEXT
        )
    except StatetrimError:
        return [None] * 4
    return [capacity.sequences_unpaged for capacity in result.capacity]
