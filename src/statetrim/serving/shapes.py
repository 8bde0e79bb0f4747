"""Shapes with less state than a model has, and the engines that serve or refuse each."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import permutations, product
from typing import Literal, get_args

from ..cut.geometry import KERNEL_TILE, Geometry
from ..cut.shape import Shape
from ..errors import StatetrimError
from .matrix import (
    Compatibility,
    Support,
    compatibility_of_shape,
    engines_supporting,
    known_engines,
    known_lines,
)

Answer = Literal["yes", "flag", "no", "wrong", "unknown"]
"""Whether an engine serves a shape; flag: yes, some hardware needs a flag; wrong: wrong output."""

COMMON_EIGHTHS = ((6, 8), (4, 8), (6, 6), (5, 6), (4, 4), (2, 2))  # of keys and of values
_STEPS = 8  # widths along an axis are eighths of it: multiples of 16 for heads of 128
_MAX_PROPOSED = 512  # channels; no engine of the matrix serves wider heads
_SEVERITY = {verdict: rank for rank, verdict in enumerate(get_args(Support))}


def candidate_shapes(
    model_type: str, geometry: Geometry, fits: Callable[[Shape], bool], engine: str | None = None
) -> dict[Shape, tuple[str, ...]]:
    """The shapes that fit and that `engine` serves, or without it all -> the engines that refuse
    it; those that every engine serves first, then the largest.

    Widths are eighths of those that every layer has, or one power of two for both. Shapes that
    another one contains on both axes are left out, except without `engine` the widest that every
    engine serves.
    """
    supporting = engines_supporting(model_type)
    refused: dict[Shape, tuple[str, ...]] = {}
    for shape in served_shapes(model_type, geometry, engine):
        if fits(shape):
            names = refusing_engines(model_type, shape)
            refused[shape] = tuple(name for name in names if name in supporting)
    widest = _without_contained(list(refused))
    if engine is None:
        # Also the widest shapes that every engine serves: a larger one may contain them.
        widest |= _without_contained([shape for shape in refused if not refused[shape]])
    ordered = sorted(widest, key=lambda shape: (bool(refused[shape]), -shape.numel, shape))
    return {shape: refused[shape] for shape in ordered}


def served_shapes(model_type: str, geometry: Geometry, engine: str | None = None) -> list[Shape]:
    """Pairs of eighths of both axes, and squares, that `engine` serves, or without it all."""
    return list(_ranked_shapes(model_type, _all_shapes(geometry), engine))


def nearest_served_shape(
    model_type: str, geometry: Geometry, requested: Shape, engine: str
) -> Shape:
    """The shape nearest to `requested` that `engine` serves, with no more state: of those with the
    best support the one with the most state, then the most value channels."""
    key_widths, value_widths = (
        range(KERNEL_TILE, min(width, _MAX_PROPOSED) + 1, KERNEL_TILE)
        for width in _widths_of_all(geometry)
    )
    tile_aligned = [Shape(*widths) for widths in product(key_widths, value_widths)]
    no_larger = [shape for shape in (requested, *tile_aligned) if shape.numel <= requested.numel]
    served = _ranked_shapes(model_type, no_larger, engine)
    if served:
        return max(served, key=lambda shape: (-served[shape], shape.numel, shape.head_v_dim))
    hint = "`statetrim inspect` lists what is known of each engine"
    whole = Shape(*_widths_of_all(geometry)).numel
    smaller = [shape for shape in tile_aligned if shape.numel < whole]
    cuts = _ranked_shapes(model_type, smaller, engine)
    if cuts:
        hint = f"the smallest cut that does is {min(cuts, key=lambda shape: shape.numel)}"
    raise StatetrimError(
        f"no shape of at most {requested} is known to serve {model_type} on {engine}; {hint}"
    )


def _ranked_shapes(
    model_type: str, shapes: Iterable[Shape], engine: str | None
) -> dict[Shape, int]:
    """The `shapes` that `engine` serves, or without it all -> rank of the worst support."""
    ranks: dict[Shape, int] = {}
    for shape in shapes:
        rank = 0 if engine is None else _worst_rank(model_type, shape, engine)
        if rank is not None:
            ranks[shape] = rank
    return ranks


def _worst_rank(model_type: str, shape: Shape, engine: str) -> int | None:
    """Rank of the worst known support on any hardware; None if the engine does not serve the shape
    there, or if nothing is known."""
    lines = known_lines(compatibility_of_shape(model_type, shape), engine)
    if not lines or not all(line.serves for line in lines):
        return None
    return max(_SEVERITY[line.verdict] for line in lines)


def check_engine(engine: str, model_type: str) -> None:
    """Raise StatetrimError for an engine that is not known to take the model type."""
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
    widths = _widths_of_all(geometry)
    key_widths, value_widths = map(_eighths, widths)
    for keys, values in product(key_widths, value_widths):
        yield Shape(keys, values)
    side = 1
    while side <= min(widths):
        yield Shape(side, side)
        side *= 2


def _widths_of_all(geometry: Geometry) -> tuple[int, int]:
    """Key and value channels that the heads of every layer have."""
    keys, values = zip(*geometry.shapes.values(), strict=True)
    return min(keys), min(values)


def _eighths(width: int) -> list[int]:
    """Ascending widths of 1/8 to 8/8 of `width`, rounded down, at least 1, without repeats."""
    return sorted({max(1, n * width // _STEPS) for n in range(1, _STEPS + 1)})


def _without_contained(shapes: list[Shape]) -> set[Shape]:
    """The shapes that no other one contains, with at least as many channels on both axes."""
    widest = set(shapes)
    for small, large in permutations(set(shapes), 2):
        if large.contains(small):
            widest.discard(small)
    return widest


def refusing_engines(model_type: str, shape: Shape) -> tuple[str, ...]:
    """Engines known not to serve the shape on some hardware."""
    lines = known_lines(compatibility_of_shape(model_type, shape))
    return tuple(sorted({line.engine for line in lines if not line.serves}))


def engine_serves(engine: str, model_type: str, shape: Shape) -> bool:
    """Whether the engine is known to serve the shape, and on no hardware known not to."""
    return _worst_rank(model_type, shape, engine) is not None


def common_shapes(geometry: Geometry) -> list[Shape]:
    """The cuts to try first, fixed eighths of both axes, without empty and repeated ones."""
    shapes: list[Shape] = []
    for keys, values in COMMON_EIGHTHS:
        shape = Shape(keys * geometry.head_k_dim // _STEPS, values * geometry.head_v_dim // _STEPS)
        if shape.numel and shape not in shapes:
            shapes.append(shape)
    return shapes


def answers_by_engine(model_type: str, shape: Shape) -> dict[str, Answer]:
    """Engine -> whether it serves the shape, on all hardware of which this is known."""
    lines = compatibility_of_shape(model_type, shape)
    return {engine: _answer(known_lines(lines, engine)) for engine in known_engines(model_type)}


def _answer(lines: Sequence[Compatibility]) -> Answer:
    """The worst answer over the hardware of which support is known; unknown if there is none."""
    if not lines:
        return "unknown"
    if any(line.verdict == "wrong" for line in lines):
        return "wrong"
    if not all(line.serves for line in lines):
        return "no"
    return "flag" if any(line.flag for line in lines) else "yes"
