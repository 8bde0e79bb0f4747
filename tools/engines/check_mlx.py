"""MLX-LM beside transformers, token by token; run with MLX-LM's own Python, no code of ours.

    MLX/bin/python tools/engines/check_mlx.py REFERENCE.json FOLDER

REFERENCE comes from reference_tokens.py, FOLDER holds the models it names. Exit code 1 when one
token differs.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
from mlx_lm import load
from mlx_lm.models.cache import make_prompt_cache


def continuation(model: object, prompt: list[int], tokens: int) -> list[int]:
    cache, ids, found = make_prompt_cache(model), prompt, []
    for _ in range(tokens):
        logits = model(mx.array([ids]), cache=cache)  # type: ignore[operator]
        found.append(int(mx.argmax(logits[0, -1]).item()))
        ids = found[-1:]
    return found


def read(model: object, readings: list[dict[str, list]]) -> tuple[int, int, float, int]:
    """Equal choices, all choices, largest difference of the best logit, different tokens chosen."""
    agreed, places, furthest, kinds = 0, 0, 0.0, set()
    for one in readings:
        logits = model(mx.array([one["text"]]))[0]  # type: ignore[operator]
        found, values = mx.argmax(logits, axis=-1).tolist(), mx.max(logits, axis=-1).tolist()
        agreed += sum(a == b for a, b in zip(found, one["tokens"], strict=True))
        places += len(found)
        kinds.update(found)
        apart = (abs(a - b) for a, b in zip(values, one["logits"], strict=True))
        furthest = max(furthest, *apart)
    return agreed, places, furthest, len(kinds)


def main() -> None:
    reference, folder = Path(sys.argv[1]), Path(sys.argv[2])
    print(f"mlx-lm {version('mlx-lm')}, mlx {version('mlx')}, float32, CPU")
    differing = 0
    for record in json.loads(reference.read_text()):
        config = json.loads((folder / record["model"] / "config.json").read_text())
        text = config.get("text_config", config)
        shape = f"{text['linear_key_head_dim']}x{text['linear_value_head_dim']}"
        model, _ = load(str(folder / record["model"]))
        model.set_dtype(mx.float32)
        same = tokens = whole = 0
        for one in record["continuations"]:
            ours = continuation(model, one["prompt"], len(one["tokens"]))
            equal = sum(a == b for a, b in zip(ours, one["tokens"], strict=True))
            same, tokens, whole = same + equal, tokens + len(ours), whole + (ours == one["tokens"])
        gap = min(one["gap"] for one in record["continuations"])
        prompts = len(record["continuations"])
        print(
            f"{record['model']} ({config['model_type']}, {shape}): {whole} of {prompts} prompts, "
            f"{same} of {tokens} tokens equal; smallest gap of the two best logits {gap:.2g}",
            flush=True,
        )
        differing += tokens - same
        agreed, places, furthest, kinds = read(model, record["readings"])
        gap = min(one["gap"] for one in record["readings"])
        print(
            f"  reading {len(record['readings'])} texts: {agreed} of {places} choices equal "
            f"({kinds} different tokens), best logit within {furthest:.2g}; smallest gap {gap:.2g}",
            flush=True,
        )
        differing += places - agreed
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
