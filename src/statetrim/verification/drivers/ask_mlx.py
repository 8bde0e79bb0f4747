"""MLX-LM, as `ask.py` runs it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache


class Engine:
    def __init__(self, request: dict[str, Any]) -> None:
        self.model, self.tokenizer = load(request["model"], **request["options"])
        self.model.set_dtype(getattr(mx, request["dtype"]))
        self.version = f"mlx-lm {version('mlx-lm')}, mlx {version('mlx')}, {mx.default_device()}"

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def most_likely(self, sequences: list[list[int]]) -> Iterator[tuple[list[int], list[float]]]:
        for ids in sequences:
            logits = self.model(mx.array([ids]))[0, :-1].astype(mx.float32)
            log_probabilities = mx.max(logits, axis=-1) - mx.logsumexp(logits, axis=-1)
            yield mx.argmax(logits, axis=-1).tolist(), log_probabilities.tolist()

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[list[int]]:
        for ids in prompts:
            cache, generated = make_prompt_cache(self.model), list[int]()
            for _ in range(tokens):
                logits = self.model(mx.array([ids]), cache=cache)
                ids = [int(mx.argmax(logits[0, -1]).item())]
                generated += ids
            yield generated
