"""Engines, one per file: every module here except `engine` defines `ENGINE`."""

import importlib
import pkgutil
from functools import cache

from ...errors import StatetrimError
from .engine import Engine

DEFAULT_ENGINE = "vllm"
_FIRST = ("vllm", "vllm_cpu", "sglang", "mlx", "llamacpp", "tensorrt_llm", "transformers")
"""Files of engines in the order of tables; others follow by name."""


@cache
def engines() -> tuple[Engine, ...]:
    """All engines, in the order of tables."""
    files = {module.name for module in pkgutil.iter_modules(__path__)} - {"engine"}
    ordered = (*_FIRST, *sorted(files.difference(_FIRST)))
    return tuple(importlib.import_module(f"{__name__}.{file}").ENGINE for file in ordered)


def named_engines() -> dict[str, Engine]:
    """Key -> engine, of those that options can name."""
    return {engine.key: engine for engine in engines() if engine.key}


def counted_engines() -> dict[str, Engine]:
    """Key -> engine, of those whose arithmetic is known."""
    return {key: engine for key, engine in named_engines().items() if engine.fit}


def find_engine(name: str | None) -> Engine:
    """The engine with this key, or this name such as "llama.cpp" in any case; without one the
    default. Raises StatetrimError if there is none."""
    plain = (DEFAULT_ENGINE if name is None else name).lower().replace(".", "")
    for engine in named_engines().values():
        if plain in (engine.key, engine.name.lower().replace(".", "")):
            return engine
    raise StatetrimError(f"there is no engine {name!r}; choose {', '.join(named_engines())}")


def engine_in_matrix(name: str) -> Engine:
    """The engine with this name in the matrix."""
    return next(engine for engine in engines() if engine.name == name)
