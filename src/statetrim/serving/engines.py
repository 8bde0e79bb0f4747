"""Which engine serves which shape of state: the runtime matrix, and what to ask of it.

The rows are data: `engines.json` is written by hand, `engines_compiled.json` by
`tools/compile_kernels.py`. No row is without a source.
"""

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

from ..errors import StatetrimError
from ..geometry import KERNEL_TILE, Geometry

Support = Literal["fast", "fallback", "unknown", "refused", "wrong"]
"""fast: the engine's usual kernels take the shape (not a measured speed); fallback: it serves, on
a slower path; wrong: it serves, and answers wrongly."""
Basis = Literal["run", "kernel", "compiled", "source", "report"]
"""run: a model generated; kernel: one kernel ran; compiled: ahead of time, nothing was launched;
source: read in the code; report: a public report by others."""

SERVING = ("fast", "fallback")
_SEVERITY = {verdict: rank for rank, verdict in enumerate(get_args(Support))}
_TABLES = ("engines_compiled.json", "engines.json")
_MAX_PROPOSED = 512  # channels; no engine here takes wider heads
_EXACT = re.compile(r"(\d{1,5})x(\d{1,5})")


@dataclass(frozen=True, order=True)
class Shape:
    """Key and value channels of one head's state."""

    head_k_dim: int
    head_v_dim: int

    @staticmethod
    def from_geometry(geometry: Geometry) -> "Shape":
        return Shape(geometry.head_k_dim, geometry.head_v_dim)

    @property
    def numel(self) -> int:
        return self.head_k_dim * self.head_v_dim

    def __str__(self) -> str:
        return f"{self.head_k_dim}x{self.head_v_dim}"


def _power_of_two_above(number: int) -> int:
    return 1 << (number - 1).bit_length()


RULES: dict[str, Callable[[int, int], bool]] = {
    "any": lambda keys, values: True,
    "keys = values": lambda keys, values: keys == values,
    "keys and values round up to one power of two": lambda keys, values: (
        _power_of_two_above(keys) == _power_of_two_above(values)
    ),
    "keys are a power of two": lambda keys, values: keys == _power_of_two_above(keys),
    "keys and values are powers of two": lambda keys, values: (
        keys == _power_of_two_above(keys) and values == _power_of_two_above(values)
    ),
    "keys <= 256": lambda keys, values: keys <= 256,
    "keys >= 16": lambda keys, values: keys >= 16,
    "keys and values are multiples of 32": lambda keys, values: not (keys % 32 or values % 32),
    "keys are a multiple of 32": lambda keys, values: keys % 32 == 0,
    "keys are a multiple of 16": lambda keys, values: keys % 16 == 0,
    "keys are even": lambda keys, values: keys % 2 == 0,
    "keys in 64, 128": lambda keys, values: keys in (64, 128),
    "keys in 96, 128, 256": lambda keys, values: keys in (96, 128, 256),
    "keys in 128, 256": lambda keys, values: keys in (128, 256),
    "keys in 16, 32, 64, 128": lambda keys, values: keys in (16, 32, 64, 128),
}
"""What a row may say of a shape, besides naming one exactly ("64x128")."""


@dataclass(frozen=True)
class Row:
    """One line of the matrix: on this engine and hardware, models and shapes like these do so."""

    engine: str
    versions: str
    hardware: tuple[str, ...]
    families: tuple[str, ...]
    shape: tuple[str, ...]  # names of RULES, or one exact shape; all must hold
    verdict: Support
    source: str
    date: str
    evidence: Basis
    error: str = ""  # what the engine says when it refuses
    flag: str = ""  # what to add to the command so that it serves
    note: str = ""
    current: bool = True  # False: kept for users of older versions

    @property
    def is_exact(self) -> bool:
        return any(_EXACT.fullmatch(rule) for rule in self.shape)

    def matches(self, shape: Shape) -> bool:
        return all(_rule_holds(rule, shape) for rule in self.shape)


@dataclass(frozen=True)
class Compatibility:
    """What one engine on one kind of hardware does with a shape."""

    engine: str
    versions: str
    hardware: str
    verdict: Support
    flag: str = ""
    error: str = ""
    note: str = ""
    source: str = ""
    evidence: str = ""
    current: bool = True

    @property
    def serves(self) -> bool:
        return self.verdict in SERVING


@dataclass(frozen=True)
class Matrix:
    """The rows, which model types each family name stands for, and how engines are started."""

    rows: tuple[Row, ...]
    families: dict[str, tuple[str, ...]]
    commands: dict[str, str]


@cache
def matrix() -> Matrix:
    """The matrix as it is shipped; rows for an exact shape come first."""
    tables = [json.loads((files(__package__) / name).read_text()) for name in _TABLES]
    main = tables[-1]
    rows = [_row_from_json(stored) for table in tables for stored in table["rows"]]
    return Matrix(
        rows=tuple(sorted(rows, key=lambda row: not row.is_exact)),
        families={name: tuple(types) for name, types in main["families"].items()},
        commands=main["commands"],
    )


def compatibility_of_shape(model_type: str, shape: Shape) -> list[Compatibility]:
    """One line for each engine and hardware that has a row for the model type, and for each range
    of older versions; the first row that fits decides."""
    engine_order = list(dict.fromkeys(row.engine for row in matrix().rows if not row.is_exact))
    lines_by_key: dict[tuple[str, str, str], Compatibility] = {}
    for row in _rows_for(model_type):
        for hardware in row.hardware:
            key = (row.engine, hardware, "" if row.current else row.versions)
            if row.matches(shape) and key not in lines_by_key:
                lines_by_key[key] = _compatibility_of_row(row, hardware)
    for row in _rows_for(model_type):
        for hardware in row.hardware:
            key = (row.engine, hardware, "" if row.current else row.versions)
            lines_by_key.setdefault(key, _unknown_compatibility(row, hardware))
    return sorted(
        lines_by_key.values(), key=lambda line: (engine_order.index(line.engine), not line.current)
    )


def compatibility_of_geometry(model_type: str, geometry: Geometry) -> list[Compatibility]:
    """The same for a model's state; no stock engine takes layers of different widths."""
    lines = compatibility_of_shape(model_type, Shape.from_geometry(geometry))
    if not geometry.widths:
        return lines
    plugin_note = "served with the plugin of statetrim (docs/widths-by-layer.md)"
    return [
        replace(
            line,
            verdict="refused",
            flag="",
            error="one width for all layers",
            note=plugin_note if line.engine == "vLLM" and line.current else "",
        )
        for line in lines
    ]


def nearest_served_shape(
    model_type: str,
    geometry: Geometry,
    keep: int,
    keep_values: int | None = None,
    *,
    engine: str | None = None,
    hardware: str | None = None,
) -> Shape:
    """The shape nearest to the asked one that serves on `engine` (None: on every engine known),
    with no more state than was asked for.

    Among those of the best verdict it is the one with the most state, then the most values.
    """
    requested, original = (
        Shape(keep, keep_values or geometry.head_v_dim),
        Shape.from_geometry(geometry),
    )
    engine_names = [engine] if engine else engines_supporting(model_type)
    engines = {name.lower() for name in engine_names}

    def severity(shape: Shape) -> int | None:
        """Of the worst verdict; None where one of the engines does not serve it."""
        lines = [line for line in compatibility_of_shape(model_type, shape) if line.current]
        lines = [line for line in lines if line.verdict != "unknown"]
        lines = [line for line in lines if line.engine.lower() in engines]
        if hardware is not None:
            lines = [line for line in lines if line.hardware.lower() == hardware.lower()]
        served = lines and all(line.serves for line in lines)
        return max(_SEVERITY[line.verdict] for line in lines) if served else None

    best: tuple[tuple[int, int, int], Shape] | None = None
    for shape in _tile_aligned_shapes(geometry, requested):
        worst_severity = severity(shape)
        if worst_severity is None:
            continue
        rank = (-worst_severity, shape.numel, shape.head_v_dim)
        if best is None or rank > best[0]:
            best = rank, shape
    if best is None:
        larger = [one for one in _tile_aligned_shapes(geometry, original) if one != original]
        served = [one for one in larger if severity(one) is not None]
        raise StatetrimError(
            f"no shape of at most {requested} is known to serve {model_type} on "
            f"{engine or 'every engine'}; "
            + (
                f"the smallest cut that does is {min(served, key=lambda one: one.numel)}"
                if served
                else "`statetrim inspect` lists what is known of each engine"
            )
        )
    return best[1]


def serve_command(line: Compatibility, model: str, *, without_mtp: bool = False) -> str:
    """What to type so that the engine serves `model`, with the flag the shape needs.

    `without_mtp`: its config may promise a head for several tokens that the weights lack.
    """
    converter_flag = " --no-mtp" if without_mtp else ""
    command = (
        matrix().commands[line.engine].format(model=shlex.quote(model), convert=converter_flag)
    )
    return f"{command} {line.flag}".strip()


def engines_supporting(model_type: str) -> set[str]:
    """Names of the engines that do not refuse the model type whatever its shape."""
    refused: set[tuple[str, str]] = set()
    supporting: set[str] = set()
    for row in _rows_for(model_type):
        for engine_and_hardware in (
            (row.engine, hardware) for hardware in row.hardware if row.current
        ):
            if row.verdict == "refused" and row.shape == ("any",):
                refused.add(engine_and_hardware)
            elif engine_and_hardware not in refused:  # a row for any shape hides those after it
                supporting.add(row.engine)
    return supporting


def known_engines(model_type: str) -> list[str]:
    """Names of the engines the matrix knows for a model type."""
    return list(dict.fromkeys(row.engine for row in _rows_for(model_type)))


def _rows_for(model_type: str) -> list[Row]:
    table = matrix()
    names = {name for name, types in table.families.items() if model_type in types}
    return [row for row in table.rows if names.intersection(row.families)]


def _compatibility_of_row(row: Row, hardware: str) -> Compatibility:
    return Compatibility(
        engine=row.engine,
        versions=row.versions,
        hardware=hardware,
        verdict=row.verdict,
        flag=row.flag,
        error=row.error,
        note=row.note,
        source=row.source,
        evidence=row.evidence,
        current=row.current,
    )


def _unknown_compatibility(row: Row, hardware: str) -> Compatibility:
    """No row fits the shape: nothing is claimed."""
    return Compatibility(
        engine=row.engine,
        versions=row.versions,
        hardware=hardware,
        verdict="unknown",
        current=row.current,
    )


def _tile_aligned_shapes(geometry: Geometry, requested: Shape) -> list[Shape]:
    """The asked shape, and every shape in whole tiles that is no larger."""
    keys, values = (
        range(KERNEL_TILE, min(dim, _MAX_PROPOSED) + 1, KERNEL_TILE)
        for dim in (geometry.head_k_dim, geometry.head_v_dim)
    )
    shapes = [Shape(k, v) for k in keys for v in values if k * v <= requested.numel]
    return [requested, *shapes]


def _rule_holds(rule: str, shape: Shape) -> bool:
    exact = _EXACT.fullmatch(rule)
    if exact:
        return shape == Shape(int(exact.group(1)), int(exact.group(2)))
    return RULES[rule](shape.head_k_dim, shape.head_v_dim)


def _row_from_json(stored: dict[str, Any]) -> Row:
    tuples = {name: tuple(stored[name]) for name in ("hardware", "families", "shape")}
    return Row(**{**stored, **tuples})
