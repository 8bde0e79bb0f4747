"""The compatibility matrix: which engine serves which shape of the state.

The rows are data: `engines.json` is written by hand, `engines_compiled.json` by
`tools/compile_kernels.py`. Every row names its source.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

from ..cut.geometry import Geometry
from ..cut.shape import Shape
from .engines import engine_in_matrix, engines
from .engines.engine import Engine

Support = Literal["fast", "fallback", "plugin", "unknown", "refused", "wrong"]
"""fast: the engine's usual kernels accept the shape (not a measured speed); fallback: a slower path
serves it; plugin: the engine serves it with a plugin of statetrim; refused: the engine raises an
error; wrong: it runs, with wrong output."""
Basis = Literal["run", "interpreted", "kernel", "compiled", "source", "report"]
"""How support is known. run: a model generated text; interpreted: kernels ran on a CPU in Triton's
interpreter, and every value was right; kernel: one kernel ran; compiled: kernels compiled but did
not run; source: read in the engine's code; report: a public report."""

SERVING = ("fast", "fallback")
_TABLES = ("engines_compiled.json", "engines.json")


def _power_of_two_above(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


RULES: dict[str, Callable[[int, int], bool]] = {
    "any": lambda keys, values: True,
    "keys = values": lambda keys, values: keys == values,
    "keys and values round up to one power of two": lambda keys, values: (
        _power_of_two_above(keys) == _power_of_two_above(values)
    ),
    "keys and values are powers of two": lambda keys, values: (
        keys == _power_of_two_above(keys) and values == _power_of_two_above(values)
    ),
    "keys = 128": lambda keys, values: keys == 128,
    "keys <= 128": lambda keys, values: keys <= 128,
    "keys <= 256": lambda keys, values: keys <= 256,
    "keys >= 16": lambda keys, values: keys >= 16,
    "keys are a multiple of 32": lambda keys, values: keys % 32 == 0,
    "keys are a multiple of 16": lambda keys, values: keys % 16 == 0,
    "keys are even": lambda keys, values: keys % 2 == 0,
    "keys in 64, 128": lambda keys, values: keys in (64, 128),
    "keys in 96, 128, 256": lambda keys, values: keys in (96, 128, 256),
    "keys in 128, 256": lambda keys, values: keys in (128, 256),
    "keys in 16, 32, 64, 128": lambda keys, values: keys in (16, 32, 64, 128),
}
"""Name in a row -> condition on the shape; a row may give an exact shape ("64x128") instead."""


@dataclass(frozen=True)
class Compatibility:
    """How one engine on one kind of hardware supports a shape."""

    engine: str
    versions: str
    hardware: str
    verdict: Support
    flag: str = ""  # option that the engine's command needs
    error: str = ""  # the engine's error message if it refuses
    note: str = ""
    source: str = ""
    evidence: Basis | Literal[""] = ""

    @property
    def serves(self) -> bool:
        return self.verdict in SERVING


@dataclass(frozen=True, kw_only=True)
class Row(Compatibility):
    """A row of the matrix for one kind of hardware: which shapes of which families it is about."""

    families: tuple[str, ...]
    shape: tuple[str, ...]  # names of RULES, or an exact shape; all must hold
    date: str

    def matches(self, shape: Shape) -> bool:
        """Whether all conditions of the row hold for `shape`."""
        exact = str(shape)
        return all(RULES[rule](*shape) if rule in RULES else rule == exact for rule in self.shape)


NEEDS_PLUGIN = "needs the plugin of statetrim (docs/widths-by-layer.md)"
"""The note of an engine that serves widths by layer only so."""


@cache
def matrix() -> tuple[list[Row], dict[str, list[str]]]:
    """The rows of the matrix, those about an exact shape first, and the model types of each family
    name."""
    rows = []
    for name in _TABLES:
        main = json.loads((files(__package__) / name).read_text())
        for stored in main["rows"]:
            tuples = {name: tuple(stored[name]) for name in ("families", "shape")}
            for hardware in stored["hardware"]:
                rows.append(Row(**stored | tuples | {"hardware": hardware}))
    return sorted(rows, key=lambda row: RULES.keys() >= set(row.shape)), main["families"]


@lru_cache(maxsize=4096)  # a comparison of cuts asks for the same shapes many times
def compatibility_of_shape(model_type: str, shape: Shape) -> tuple[Compatibility, ...]:
    """A line per engine and hardware that has a row for the model type.

    The first row that matches the shape decides; without one the support is unknown.
    """
    engine_order = [engine.name for engine in engines()]
    lines: dict[tuple[str, str], Compatibility] = {}
    for row in sorted(_rows_for(model_type), key=lambda row: not row.matches(shape)):
        line = Compatibility(row.engine, row.versions, row.hardware, "unknown")
        if row.matches(shape):
            known = {field.name: getattr(row, field.name) for field in fields(Compatibility)}
            line = Compatibility(**known)
        lines.setdefault((row.engine, row.hardware), line)
    return tuple(sorted(lines.values(), key=lambda line: engine_order.index(line.engine)))


def compatibility_of_geometry(model_type: str, geometry: Geometry) -> list[Compatibility]:
    """`compatibility_of_shape` of a model's state; widths by layer need a plugin or are refused."""
    lines = list(compatibility_of_shape(model_type, geometry.widest))
    if not geometry.widths:
        return lines
    served = [
        {
            (line.engine, line.hardware)
            for line in compatibility_of_shape(model_type, shape)
            if line.serves and model_type in engine_in_matrix(line.engine).plugin_types
        }
        for shape in set(geometry.shapes.values())
    ]
    by_plugin = set.intersection(*served)
    answers = []
    for line in lines:
        # The evidence is of one width for all layers.
        blank = replace(line, flag="", error="", note="", evidence="")
        if (line.engine, line.hardware) in by_plugin:
            answers.append(replace(blank, verdict="plugin", note=NEEDS_PLUGIN))
        else:
            answers.append(replace(blank, verdict="refused", error="one width for all layers"))
    return answers


@dataclass(frozen=True)
class ServedBy:
    """What all known engines do with a state: one line for each answer."""

    served: tuple[str, ...]  # on some hardware at least
    by_plugin: tuple[str, ...]
    refused: tuple[str, ...]  # "vLLM", or "vLLM on Hopper" where other hardware serves it
    unknown: tuple[str, ...]

    @staticmethod
    def of(model_type: str, geometry: Geometry, first: Engine | None = None) -> "ServedBy":
        """The engines by their answers, the engine `first` before the others. One that serves on
        some hardware may refuse or be unknown on other."""
        lines = compatibility_of_geometry(model_type, geometry)
        lines.sort(key=lambda line: first is None or line.engine != first.name)
        served = dict.fromkeys(line.engine for line in lines if line.serves)
        by_plugin = dict.fromkeys(line.engine for line in lines if line.verdict == "plugin")
        taken = served | by_plugin
        refused, unknown = dict[str, None](), dict[str, None]()
        for line in lines:
            where = f"{line.engine} on {line.hardware}" if line.engine in taken else line.engine
            if line.verdict == "wrong":
                refused[f"{where} (wrong output)"] = None
            elif line.verdict == "refused":
                refused[where] = None
            elif line.verdict == "unknown":
                unknown[where] = None
        only_unknown = [name for name in unknown if name not in refused]
        return ServedBy(*map(tuple, (served, by_plugin, refused, only_unknown)))

    @property
    def texts(self) -> list[str]:
        """A line for people per answer; at least one."""
        texts = [f"served by {', '.join(self.served)}"] if self.served else []
        if self.by_plugin:
            texts.append(f"served by {', '.join(self.by_plugin)}: {NEEDS_PLUGIN}")
        texts = texts or ["no engine is known to serve it"]
        if self.refused:
            texts.append(f"refused by {', '.join(self.refused)}")
        if self.unknown:
            texts.append(f"not known: {', '.join(self.unknown)}")
        return texts


def known_lines(lines: Sequence[Compatibility], engine: str | None = None) -> list[Compatibility]:
    """The lines whose support is known; of one engine if it is given."""
    known = [line for line in lines if line.verdict != "unknown"]
    return known if engine is None else [line for line in known if line.engine == engine]


def engines_supporting(model_type: str) -> set[str]:
    """The engines that, on at least one kind of hardware, do not refuse every shape of the model
    type."""
    refused: set[tuple[str, str]] = set()
    supporting: set[str] = set()
    for row in _rows_for(model_type):
        if row.verdict == "refused" and row.shape == ("any",):
            refused.add((row.engine, row.hardware))
        elif (row.engine, row.hardware) not in refused:  # earlier rows decide
            supporting.add(row.engine)
    return supporting


def known_engines(model_type: str) -> list[str]:
    """The engines that have a row for the model type."""
    return list(dict.fromkeys(row.engine for row in _rows_for(model_type)))


def unserved_text(model_type: str, engine: Engine) -> str:
    """Warns of counts in an engine that has no row for the model type; else empty."""
    if engine.name in known_engines(model_type):
        return ""
    return f"{engine.name} is not known to serve {model_type}; only its arithmetic is used here"


def _rows_for(model_type: str) -> list[Row]:
    """The rows about families that include the model type; those of an exact shape come first."""
    rows, families = matrix()
    names = {name for name, types in families.items() if model_type in types}
    return [row for row in rows if names.intersection(row.families)]
