"""vLLM's answers over its OpenAI endpoint, judged by transformers; for several models.

    python experiments/engines/check_vllm.py VLLM/bin/python MODEL... --text valid.jsonl

bfloat16 ties and rounding let free-running texts part sooner or later, pruned or not. So
transformers is given vLLM's own tokens and says, for each, whether it would have chosen the same,
and by how many logits it preferred another. The first model is the control: the others should agree
as well as it does.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from pathlib import Path

import torch
from reference_tokens import prompts

import statetrim as st
from statetrim.vllm_server import Load, server


def generate(port: int, prompt: list[int], tokens: int) -> list[int]:
    body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0.0}
    body |= {"ignore_eos": True, "return_token_ids": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as answer:
        return list(json.load(answer)["choices"][0]["token_ids"])


@torch.inference_mode()
def judge(model: torch.nn.Module, prompt: list[int], found: list[int]) -> list[float]:
    """How many logits the best token is above vLLM's, for each of vLLM's tokens; 0 is agreement."""
    logits = model(input_ids=torch.tensor([prompt + found])).logits[0].float()
    seen = logits[len(prompt) - 1 : -1]
    chosen = seen.gather(1, torch.tensor(found).unsqueeze(1)).squeeze(1)
    return list((seen.max(dim=1).values - chosen).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("python", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=40)
    arguments = parser.parse_args()
    load = Load(requests=4, length=128, memory=2**28)
    for path in arguments.models:
        given = prompts(path, arguments.text, arguments.prompts, arguments.length)
        with server(arguments.python, path, load) as (port, _):
            found = [generate(port, prompt, arguments.tokens) for prompt in given]
        geometry = st.open(path).geometry
        for dtype in (torch.bfloat16, torch.float32):
            model = st.load(path, dtype=dtype)
            gaps = [gap for p, f in zip(given, found, strict=True) for gap in judge(model, p, f)]
            agreed = sum(gap == 0 for gap in gaps)
            print(
                f"{path.name} ({geometry.head_k_dim}x{geometry.head_v_dim}), transformers in "
                f"{str(dtype).removeprefix('torch.')}: {agreed} of {len(gaps)} tokens agree "
                f"({100 * agreed / len(gaps):.1f}%), largest gap {max(gaps):.3f} logits, "
                f"mean gap {sum(gaps) / len(gaps):.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
