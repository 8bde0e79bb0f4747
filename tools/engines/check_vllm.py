"""vLLM's answers over its OpenAI endpoint, judged by transformers; for several models.

    python tools/engines/check_vllm.py VLLM/bin/python MODEL... --text valid.jsonl

bfloat16 ties and rounding let free-running texts part sooner or later, pruned or not. So both are
given the same tokens: transformers reads vLLM's own continuations, and both read texts. For every
place transformers says whether it would have chosen vLLM's token, and by how many logits it
preferred another; a token that shares the best logit with others counts as chosen. The first model
is the control: the others should agree as well as it does. How far transformers in bfloat16 agrees
with itself in float32 tells what any engine in bfloat16 can reach.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from reference_tokens import prompts
from torch import Tensor

import statetrim as st
from statetrim.benchmarking.vllm_server import Load, server
from statetrim.maths.paired import Pairs, difference_interval

AT_ONCE = 8


def complete(port: int, prompt: list[int], **options: Any) -> dict[str, Any]:
    body = {"model": "model", "prompt": prompt, "temperature": 0.0, "ignore_eos": True, **options}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return dict(json.load(answer)["choices"][0])


def continuation(port: int, prompt: list[int], tokens: int) -> list[int]:
    return list(complete(port, prompt, max_tokens=tokens, return_token_ids=True)["token_ids"])


def reading(port: int, text: list[int]) -> list[int]:
    """The token vLLM would have chosen after each but the last of `text`."""
    places = complete(port, text, max_tokens=1, prompt_logprobs=1)["prompt_logprobs"][1:]
    return [
        next(int(token) for token, found in place.items() if found["rank"] == 1) for place in places
    ]


@torch.inference_mode()
def logits_of(model: torch.nn.Module, tokens: list[int]) -> Tensor:
    """float32 [tokens, vocabulary]"""
    return model(input_ids=torch.tensor([tokens])).logits[0].float()


def gaps(logits: Tensor, chosen: list[int]) -> Tensor:
    """How far below the best of `logits` [places, vocabulary] each chosen token is; 0 agrees."""
    index = torch.tensor(chosen).unsqueeze(1)
    return logits.max(1).values - logits.gather(1, index).squeeze(1)


def compare(path: Path, texts: list[list[int]], begins: int, chosen: list[list[int]]) -> Tensor:
    """Agreement in each text, float64 [texts], by transformers in bfloat16; the rest is printed.

    `chosen` are vLLM's tokens for the places after `begins` tokens of each text.
    """
    narrow, wide = (st.load(path, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    found: dict[str, list[Tensor]] = {"bfloat16": [], "float32": [], "itself": []}
    shared = 0  # places where vLLM's is one of several best
    for text, tokens in zip(texts, chosen, strict=True):
        one, other = (logits_of(m, text)[begins - 1 : -1] for m in (narrow, wide))
        found["bfloat16"].append(gaps(one, tokens))
        ties = (one == one.max(1, keepdim=True).values).sum(1) > 1
        shared += int((ties & (found["bfloat16"][-1] == 0)).sum())
        found["float32"].append(gaps(other, tokens))
        found["itself"].append(gaps(other, one.argmax(1).tolist()))
    for name, by in {
        "vLLM, by transformers in bfloat16": "bfloat16",
        "vLLM, by transformers in float32": "float32",
        "transformers in bfloat16, by float32": "itself",
    }.items():
        every = torch.cat(found[by])
        agreed = int((every == 0).sum())
        print(
            f"  {name}: {agreed} of {len(every)} ({100 * agreed / len(every):.2f} %), largest gap "
            f"{every.max():.3f}, mean gap {every.mean():.6f}",
            flush=True,
        )
    different = len({token for tokens in chosen for token in tokens})
    print(f"  different tokens: {different}; best logit shared with others in bfloat16: {shared}")
    return torch.stack([(gap == 0).double().mean() for gap in found["bfloat16"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("python", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--length", type=int, default=24, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=40, help="tokens generated")
    parser.add_argument("--reading", type=int, default=200, help="tokens of a text that is read")
    options = parser.parse_args()
    load = Load(requests=AT_ONCE, length=512, memory=2**28)
    control: dict[str, Tensor] = {}
    for path in options.models:
        given, texts = (
            prompts(path, options.text, options.prompts, length)
            for length in (options.length, options.reading)
        )
        with server(options.python, path, load) as (port, _), ThreadPoolExecutor(AT_ONCE) as pool:
            said = list(pool.map(lambda p: continuation(port, p, options.tokens), given))
            read = list(pool.map(lambda t: reading(port, t), texts))
        geometry = st.open(path).geometry
        print(f"{path.name} ({geometry.head_k_dim}x{geometry.head_v_dim})")
        whole = [prompt + tokens for prompt, tokens in zip(given, said, strict=True)]
        for what, (sequences, begins, chosen) in {
            "its own continuations": (whole, options.length, said),
            "texts": (texts, 1, read),
        }.items():
            print(f" {what}")
            agreed = compare(path, sequences, begins, chosen)
            before = control.setdefault(what, agreed)
            if before is not agreed:
                off = difference_interval([Pairs(before, agreed)])
                print(
                    f"  beside the first model: {100 * off.estimate:+.2f} points "
                    f"({100 * off.low:+.2f} to {100 * off.high:+.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
