"""MLX-LM: read a prompt and save its cache, or load a cache, and continue.

    python prompt_cache.py MODEL save FILE TOKENS IDS.json
    python prompt_cache.py MODEL load FILE TOKENS IDS.json

Prints the continuation as JSON. IDS holds the prompt's tokens; with `load` only its last one is
read, after the cache.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import load_prompt_cache, make_prompt_cache, save_prompt_cache


def main() -> None:
    folder, action, file, tokens, prompt = sys.argv[1:]
    model, _ = load(folder)
    model.set_dtype(mx.float32)
    ids = json.loads(Path(prompt).read_text())
    if action == "save":
        cache = make_prompt_cache(model)
        model(mx.array([ids[:-1]]), cache=cache)
        save_prompt_cache(file, cache)
    cache, last, continuation, margins = load_prompt_cache(file), ids[-1:], [], []
    for _ in range(int(tokens)):
        logits = model(mx.array([last]), cache=cache)[0, -1]
        top = mx.sort(logits)[-2:].tolist()
        margins.append(top[1] - top[0])
        last = [int(mx.argmax(logits).item())]
        continuation += last
    print(json.dumps({"tokens": continuation, "margins": margins}))


if __name__ == "__main__":
    main()
