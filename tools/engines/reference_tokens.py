"""Greedy continuations and readings of text by transformers in float32, to compare engines with.

    python tools/engines/reference_tokens.py OUT.json MODEL... --text valid.jsonl

A continuation is what the model says after a prompt; a reading is which token it would have chosen
at every place of a text. `gap` is the smallest distance of the two best logits over a continuation:
how far it is from a tie.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

import statetrim as st
from statetrim.runtime.loading import load_tokenizer


def prompts(model: Path, text: Path, count: int, length: int) -> list[list[int]]:
    tokenizer = load_tokenizer(st.open(model))
    found: list[list[int]] = []
    with text.open() as lines:
        for line in lines:
            ids = tokenizer(json.loads(line)["text"])["input_ids"][:length]
            if len(ids) == length:
                found.append(ids)
            if len(found) == count:
                return found
    raise SystemExit(f"{text} holds only {len(found)} texts of {length} tokens")


@torch.inference_mode()
def continuation(model: torch.nn.Module, prompt: list[int], tokens: int) -> dict[str, object]:
    ids, cache, found, gaps = torch.tensor([prompt]), None, [], []
    for _ in range(tokens):
        output = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache, best = output.past_key_values, output.logits[0, -1].topk(2)
        found.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        ids = best.indices[:1].unsqueeze(0)
    return {"prompt": prompt, "tokens": found, "gap": min(gaps)}


@torch.inference_mode()
def reading(model: torch.nn.Module, text: list[int]) -> dict[str, object]:
    logits = model(input_ids=torch.tensor([text])).logits[0]
    best = logits.topk(2)
    return {
        "text": text,
        "tokens": best.indices[:, 0].tolist(),
        "logits": best.values[:, 0].tolist(),
        "gap": float((best.values[:, 0] - best.values[:, 1]).min()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--length", type=int, default=24, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=32, help="tokens generated")
    parser.add_argument("--reading", type=int, default=200, help="tokens of a text that is read")
    arguments = parser.parse_args()
    records = []
    for path in arguments.models:
        model = st.load(path, dtype=torch.float32)
        given = prompts(path, arguments.text, arguments.prompts, arguments.length)
        found = [continuation(model, prompt, arguments.tokens) for prompt in given]
        texts = prompts(path, arguments.text, arguments.prompts, arguments.reading)
        records.append(
            {
                "model": path.name,
                "continuations": found,
                "readings": [reading(model, text) for text in texts],
            }
        )
        print(path.name, "smallest gap", min(float(str(one["gap"])) for one in found), flush=True)
    arguments.out.write_text(json.dumps(records))


if __name__ == "__main__":
    main()
