"""What a cut saves, and what is free: a bfloat16 state without a cut, the cut alone, both."""

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
    """One way to hold the state of a sequence."""

    name: str
    state_bytes: int
    sequences: int | None = None  # of CONTEXT tokens in MEMORY_GIB; None where it cannot be told


def alternatives(
    before: Geometry, after: Geometry, model: Checkpoint | None = None
) -> list[Alternative]:
    """The original, its state in bfloat16, the cut, and both; `model` is the original."""
    counts = _sequence_counts(model, after) if model is not None else [None] * 4
    names = ("original, float32", "original, bfloat16", "cut, float32", "cut, bfloat16")
    sizes = [
        geometry.state_numel * DTYPE_BYTES[dtype]
        for geometry in (before, after)
        for dtype in ("float32", "bfloat16")
    ]
    return [Alternative(*fields) for fields in zip(names, sizes, counts, strict=True)]


def _sequence_counts(model: Checkpoint, after: Geometry) -> list[int | None]:
    try:
        result = deployment(
            model, after, dtype=served_dtype(model), memory_gib=MEMORY_GIB, context=CONTEXT
        )
    except StatetrimError:
        return [None] * 4
    return [capacity.sequences_unpaged for capacity in result.capacity]
