"""The shapes a state can be cut to within a share of its bytes, and which engines refuse each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..errors import StatetrimError
from ..geometry import Geometry
from .engines import Shape, compatibility_of_shape, engines_supporting, known_engines

Answer = Literal["yes", "flag", "no", "wrong", "unknown"]
"""flag: some hardware needs a flag; wrong: it serves, and answers wrongly."""

COMMON_EIGHTHS = ((6, 8), (4, 8), (6, 6), (5, 6), (4, 4), (2, 2))  # eighths of keys and of values
_STEPS = 8  # widths tried along an axis: eighths of it, whole tiles of 16 on heads of 128


@dataclass(frozen=True)
class Candidate:
    """A shape within the budget, and the engines that do not serve it."""

    shape: Shape
    share: float  # of the bytes of the present state
    refused: tuple[str, ...]

    @property
    def is_served_everywhere(self) -> bool:
        return not self.refused


def candidate_shapes(
    model_type: str, geometry: Geometry, share: float, engine: str | None = None
) -> list[Candidate]:
    """Shapes of at most `share` of the state's bytes that `engine` serves (None: those that every
    engine serves come first), none of which another could replace with more channels of both axes.
    """
    if not 0 < share < 1:
        raise StatetrimError(
            f"the fraction of the state to keep must be between 0 and 1, not {share:g}; "
            "0.5 halves it"
        )
    if engine is not None:
        check_engine(engine, model_type)
    supporting = engines_supporting(model_type)
    shapes_within = [
        shape for shape in _all_shapes(geometry) if shape.numel <= share * _head_numel(geometry)
    ]
    refused = {
        shape: tuple(name for name in refusing_engines(model_type, shape) if name in supporting)
        for shape in shapes_within
    }
    served = [
        shape
        for shape in shapes_within
        if engine is None or engine_serves(engine, model_type, shape)
    ]
    # An engine's rule (a square, a power of two) may leave only shapes that a larger one contains.
    groups = [[s for s in served if not refused[s]], served] if engine is None else [served]
    widest = {shape for group in groups for shape in group if not _is_contained(shape, group)}
    result = [
        Candidate(shape, shape.numel / _head_numel(geometry), refused[shape])
        for shape in sorted(widest)
    ]
    if not result:
        where = engine or "any engine"
        raise StatetrimError(
            f"no shape of at most {share:.0%} of the state is known to serve {model_type} on "
            f"{where}; `statetrim inspect` lists what is known of each engine"
        )
    return sorted(
        result, key=lambda candidate: (not candidate.is_served_everywhere, -candidate.shape.numel)
    )


def check_engine(engine: str, model_type: str) -> None:
    """Refuse an engine that takes the model type in no shape."""
    engines = known_engines(model_type)
    if engine not in engines:
        alternatives = f"; it is served by {', '.join(engines)}" if engines else ""
        raise StatetrimError(f"{engine} is not known to serve {model_type} at all{alternatives}")
    if engine not in engines_supporting(model_type):
        raise StatetrimError(
            f"{engine} does not take {model_type}, cut or not; `statetrim inspect` says why"
        )


def _all_shapes(geometry: Geometry) -> Iterator[Shape]:
    """Every pair of eighths of both axes, and every square of a power of two."""
    keys, values = geometry.head_k_dim, geometry.head_v_dim
    widths = [
        sorted({max(1, n * dim // _STEPS) for n in range(1, _STEPS + 1)}) for dim in (keys, values)
    ]
    yield from (Shape(k, v) for k in widths[0] for v in widths[1])
    side = 1
    while side <= min(keys, values):
        if side not in widths[0] or side not in widths[1]:
            yield Shape(side, side)
        side *= 2


def _head_numel(geometry: Geometry) -> int:
    return geometry.head_k_dim * geometry.head_v_dim


def _is_contained(shape: Shape, others: list[Shape]) -> bool:
    return any(
        other != shape
        and other.head_k_dim >= shape.head_k_dim
        and other.head_v_dim >= shape.head_v_dim
        for other in others
    )


def refusing_engines(model_type: str, shape: Shape) -> tuple[str, ...]:
    """Engines whose current version is known not to serve the shape on some hardware."""
    lines = [line for line in compatibility_of_shape(model_type, shape) if line.current]
    failing = {line.engine for line in lines if not line.serves and line.verdict != "unknown"}
    return tuple(sorted(failing))


def engine_serves(engine: str, model_type: str, shape: Shape) -> bool:
    """Whether it is known to, and on no hardware known not to."""
    lines = compatibility_of_shape(model_type, shape)
    known_lines = [one for one in lines if one.engine == engine and one.current]
    known_lines = [line for line in known_lines if line.verdict != "unknown"]
    return bool(known_lines) and all(line.serves for line in known_lines)


def common_shapes(geometry: Geometry) -> list[Shape]:
    """The cuts that people try first."""
    keys, values = geometry.head_k_dim, geometry.head_v_dim
    shapes = [Shape(k * keys // _STEPS, v * values // _STEPS) for k, v in COMMON_EIGHTHS]
    return [shape for shape in dict.fromkeys(shapes) if shape.numel]


def answers_by_engine(model_type: str, shape: Shape) -> dict[str, Answer]:
    """Whether the current version of each engine serves the shape, on all hardware known."""
    return {engine: _answer(engine, model_type, shape) for engine in known_engines(model_type)}


def _answer(engine: str, model_type: str, shape: Shape) -> Answer:
    lines = [
        one
        for one in compatibility_of_shape(model_type, shape)
        if one.engine == engine and one.current
    ]
    known_lines = [line for line in lines if line.verdict != "unknown"]
    if not known_lines:
        return "unknown"
    if any(line.verdict == "wrong" for line in known_lines):
        return "wrong"
    if not all(line.serves for line in known_lines):
        return "no"
    return "flag" if any(line.flag for line in known_lines) else "yes"
