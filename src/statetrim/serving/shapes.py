"""Shapes within a share of the state's bytes, and the engines that serve or refuse each."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product
from typing import Literal

from ..errors import StatetrimError
from ..geometry import Geometry
from .engines import Shape, compatibility_of_shape, engines_supporting, known_engines, known_lines

Answer = Literal["yes", "flag", "no", "wrong", "unknown"]
"""Whether an engine serves a shape; flag: yes, some hardware needs a flag; wrong: wrong output."""

COMMON_EIGHTHS = ((6, 8), (4, 8), (6, 6), (5, 6), (4, 4), (2, 2))  # of keys and of values
_STEPS = 8  # widths along an axis are eighths of it: multiples of 16 for heads of 128


@dataclass(frozen=True)
class Candidate:
    """A shape within the requested share, and the engines that do not serve it."""

    shape: Shape
    share: float  # of the bytes of the current state
    refused: tuple[str, ...]

    @property
    def is_served_everywhere(self) -> bool:
        return not self.refused


def candidate_shapes(
    model_type: str, geometry: Geometry, share: float, engine: str | None = None
) -> list[Candidate]:
    """The shapes of at most `share` of the state's bytes that `engine` serves, or without it all,
    those that every engine serves first, then the largest.

    Widths are eighths of an axis, or one power of two for both. Shapes that another one contains on
    both axes are left out, except without `engine` the widest that every engine serves. Raises
    StatetrimError if there is no such shape, or unless 0 < share < 1.
    """
    if not 0 < share < 1:
        raise StatetrimError(
            f"the fraction of the state to keep must be between 0 and 1, not {share:g}; "
            "0.5 halves it"
        )
    if engine is not None:
        check_engine(engine, model_type)
    supporting = engines_supporting(model_type)
    head_numel = geometry.head_k_dim * geometry.head_v_dim
    refused: dict[Shape, tuple[str, ...]] = {}
    for shape in _all_shapes(geometry):
        if shape.numel > share * head_numel:
            continue
        if engine is None or engine_serves(engine, model_type, shape):
            names = refusing_engines(model_type, shape)
            refused[shape] = tuple(name for name in names if name in supporting)
    if not refused:
        where = engine or "any engine"
        raise StatetrimError(
            f"no shape of at most {share:.0%} of the state is known to serve {model_type} on "
            f"{where}; `statetrim inspect` lists what is known of each engine"
        )
    widest = _without_contained(list(refused))
    if engine is None:
        # Also the widest shapes that every engine serves: a larger one may contain them.
        widest |= _without_contained([shape for shape in refused if not refused[shape]])
    result = []
    for shape in sorted(widest):
        result.append(Candidate(shape, shape.numel / head_numel, refused[shape]))
    return sorted(
        result, key=lambda candidate: (not candidate.is_served_everywhere, -candidate.shape.numel)
    )


def check_engine(engine: str, model_type: str) -> None:
    """Raise StatetrimError if nothing is known of the engine and the model type, or if the engine
    refuses every shape of it."""
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
    key_widths, value_widths = _eighths(geometry.head_k_dim), _eighths(geometry.head_v_dim)
    for keys, values in product(key_widths, value_widths):
        yield Shape(keys, values)
    side = 1
    while side <= min(geometry.head_k_dim, geometry.head_v_dim):
        if side not in key_widths or side not in value_widths:
            yield Shape(side, side)
        side *= 2


def _eighths(width: int) -> list[int]:
    """Ascending widths of 1/8 to 8/8 of `width`, rounded down, at least 1, without repeats."""
    return sorted({max(1, n * width // _STEPS) for n in range(1, _STEPS + 1)})


def _without_contained(shapes: list[Shape]) -> set[Shape]:
    """The shapes that no other one contains, with at least as many channels on both axes."""
    widest = set(shapes)
    for small, large in permutations(set(shapes), 2):
        if large.head_k_dim >= small.head_k_dim and large.head_v_dim >= small.head_v_dim:
            widest.discard(small)
    return widest


def refusing_engines(model_type: str, shape: Shape) -> tuple[str, ...]:
    """Engines whose current version is known not to serve the shape on some hardware."""
    lines = known_lines(compatibility_of_shape(model_type, shape))
    return tuple(sorted({line.engine for line in lines if not line.serves}))


def engine_serves(engine: str, model_type: str, shape: Shape) -> bool:
    """Whether the engine is known to serve the shape, and on no hardware known not to."""
    lines = known_lines(compatibility_of_shape(model_type, shape), engine)
    return bool(lines) and all(line.serves for line in lines)


def common_shapes(geometry: Geometry) -> list[Shape]:
    """The cuts to try first, fixed eighths of both axes, without empty and repeated ones."""
    shapes: list[Shape] = []
    for keys, values in COMMON_EIGHTHS:
        shape = Shape(keys * geometry.head_k_dim // _STEPS, values * geometry.head_v_dim // _STEPS)
        if shape.numel and shape not in shapes:
            shapes.append(shape)
    return shapes


def answers_by_engine(model_type: str, shape: Shape) -> dict[str, Answer]:
    """Engine -> whether its current version serves the shape, on all hardware of which this is
    known."""
    return {engine: _answer(engine, model_type, shape) for engine in known_engines(model_type)}


def _answer(engine: str, model_type: str, shape: Shape) -> Answer:
    """The worst answer over the hardware of which support is known; unknown if there is none."""
    lines = known_lines(compatibility_of_shape(model_type, shape), engine)
    if not lines:
        return "unknown"
    if any(line.verdict == "wrong" for line in lines):
        return "wrong"
    if not all(line.serves for line in lines):
        return "no"
    return "flag" if any(line.flag for line in lines) else "yes"
