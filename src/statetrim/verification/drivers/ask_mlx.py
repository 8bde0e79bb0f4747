"""MLX-LM reads sequences and continues prompts; `drivers/__init__.py` documents the files."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache


def most_likely(model: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    """The most likely token after each token of `ids` but the last, and its log-probability."""
    logits = model(mx.array([ids]))[0, :-1].astype(mx.float32)
    log_probabilities = mx.max(logits, axis=-1) - mx.logsumexp(logits, axis=-1)
    return mx.argmax(logits, axis=-1).tolist(), log_probabilities.tolist()


def generate(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """The `tokens` tokens of the greedy continuation with a cache, without the prompt."""
    cache, ids = make_prompt_cache(model), prompt
    generated: list[int] = []
    for _ in range(tokens):
        logits = model(mx.array([ids]), cache=cache)
        ids = [int(mx.argmax(logits[0, -1]).item())]
        generated += ids
    return generated


def main() -> None:
    """Read the request file, the first argument, and write the answer file, the second."""
    request = json.loads(Path(sys.argv[1]).read_text())
    model, tokenizer = load(request["model"], **request["options"])
    model.set_dtype(getattr(mx, request["dtype"]))
    answer: dict[str, Any] = {
        "engine": f"mlx-lm {version('mlx-lm')}, mlx {version('mlx')}, {mx.default_device()}",
        "encoded": [tokenizer.encode(t, add_special_tokens=False) for t in request["texts"]],
        "choices": [],
        "log_probabilities": [],
        "continuations": [generate(model, p, request["generate"]) for p in request["prompts"]],
    }
    for ids in request["sequences"]:
        choices, log_probabilities = most_likely(model, ids)
        answer["choices"].append(choices)
        answer["log_probabilities"].append(log_probabilities)
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
