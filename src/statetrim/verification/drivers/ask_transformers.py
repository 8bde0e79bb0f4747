"""transformers reads sequences and continues prompts; `drivers/__init__.py` documents the files.

A quantised checkpoint is loaded as it is stored, by the quantiser that its config names. statetrim
dequantises it by its own code instead: agreement of both shows that they read the same weights.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

GPU_KERNELS = ("fla", "causal_conv1d", "mamba_ssm")


def load(path: str, dtype: str, options: dict[str, Any]) -> tuple[Any, Any]:
    """The model and its tokenizer, from local files and without remote code."""
    if not torch.cuda.is_available():  # transformers binds them whatever the device
        sys.modules.update(dict.fromkeys(GPU_KERNELS))  # type: ignore[arg-type]
    from transformers import AutoModelForCausalLM, AutoTokenizer

    arguments = {"local_files_only": True, "trust_remote_code": False}
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), use_safetensors=True, **arguments, **options
    )
    return model.eval(), AutoTokenizer.from_pretrained(path, **arguments)


def most_likely(model: Any, ids: list[int]) -> tuple[list[int], list[float]]:
    """The most likely token after each token of `ids` but the last, and its log-probability."""
    logits = model(input_ids=torch.tensor([ids], device=model.device)).logits[0, :-1].float()
    best = logits.log_softmax(-1).max(-1)
    return best.indices.tolist(), best.values.tolist()


def generate(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """The `tokens` tokens of the greedy continuation with a cache, without the prompt."""
    cache, ids = None, prompt
    generated: list[int] = []
    for _ in range(tokens):
        input_ids = torch.tensor([ids], device=model.device)
        output = model(input_ids=input_ids, past_key_values=cache, use_cache=True)
        cache, ids = output.past_key_values, [int(output.logits[0, -1].argmax())]
        generated += ids
    return generated


@torch.inference_mode()
def main() -> None:
    """Read the request file, the first argument, and write the answer file, the second."""
    request = json.loads(Path(sys.argv[1]).read_text())
    model, tokenizer = load(request["model"], request["dtype"], request["options"])
    answer: dict[str, Any] = {
        "engine": f"transformers {version('transformers')}, torch {version('torch')}",
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
