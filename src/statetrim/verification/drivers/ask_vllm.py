"""vLLM reads sequences and continues prompts; see `drivers/__init__.py` for the two files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # its errors reach us
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import vllm
from vllm import LLM, SamplingParams


def most_likely(positions: list[dict[int, Any]]) -> tuple[list[int], list[float]]:
    """The most likely token of each place, and its log-probability."""
    best = [
        next((token, logprob.logprob) for token, logprob in position.items() if logprob.rank == 1)
        for position in positions
    ]
    return [int(token) for token, _ in best], [
        float(log_probability) for _, log_probability in best
    ]


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    longest = max(map(len, request["sequences"] + request["prompts"])) + request["generate"] + 1
    arguments = {"enforce_eager": True, "max_model_len": longest, "max_num_seqs": 8}
    arguments |= {"dtype": request["dtype"], "load_format": "safetensors"}
    llm = LLM(model=request["model"], **(arguments | request["options"]))

    def generate(sequences: list[list[int]], **sampling: Any) -> list[Any]:
        prompts = [{"prompt_token_ids": ids} for ids in sequences]
        greedy = SamplingParams(temperature=0.0, **sampling)
        return list(llm.generate(prompts, greedy, use_tqdm=False))

    readings = [
        most_likely(output.prompt_logprobs[1:])
        for output in generate(request["sequences"], max_tokens=1, prompt_logprobs=1)
    ]
    continuations = generate(request["prompts"], max_tokens=request["generate"], ignore_eos=True)
    tokenizer = llm.get_tokenizer()
    answer = {
        "engine": f"vLLM {vllm.__version__}, {vllm.platforms.current_platform.device_name}",
        "encoded": [tokenizer.encode(t, add_special_tokens=False) for t in request["texts"]],
        "choices": [choices for choices, _ in readings],
        "log_probabilities": [log_probabilities for _, log_probabilities in readings],
        "continuations": [list(output.outputs[0].token_ids) for output in continuations],
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
