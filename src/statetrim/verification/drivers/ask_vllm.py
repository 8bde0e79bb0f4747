"""vLLM reads sequences and continues prompts; `drivers/__init__.py` documents the files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # errors appear in this process
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import vllm
from vllm import LLM, SamplingParams


def most_likely(positions: list[dict[int, Any]]) -> tuple[list[int], list[float]]:
    """The most likely token at each position, and its log-probability."""
    tokens, log_probabilities = [], []
    for position in positions:
        for token, entry in position.items():
            if entry.rank == 1:
                tokens.append(int(token))
                log_probabilities.append(float(entry.logprob))
    return tokens, log_probabilities


def main() -> None:
    """Read the request file, the first argument, and write the answer file, the second."""
    request = json.loads(Path(sys.argv[1]).read_text())
    longest = max(map(len, request["sequences"] + request["prompts"])) + request["generate"] + 1
    arguments = {"enforce_eager": True, "max_model_len": longest, "max_num_seqs": 8}
    arguments |= {"dtype": request["dtype"], "load_format": "safetensors"}
    llm = LLM(model=request["model"], **(arguments | request["options"]))

    def generate(sequences: list[list[int]], **sampling: Any) -> list[Any]:
        prompts = [{"prompt_token_ids": ids} for ids in sequences]
        greedy = SamplingParams(temperature=0.0, **sampling)
        return list(llm.generate(prompts, greedy, use_tqdm=False))

    tokenizer = llm.get_tokenizer()
    answer: dict[str, Any] = {
        "engine": f"vLLM {vllm.__version__}, {vllm.platforms.current_platform.device_name}",
        "encoded": [tokenizer.encode(t, add_special_tokens=False) for t in request["texts"]],
        "choices": [],
        "log_probabilities": [],
        "continuations": [],
    }
    for output in generate(request["sequences"], max_tokens=1, prompt_logprobs=1):
        choices, log_probabilities = most_likely(output.prompt_logprobs[1:])
        answer["choices"].append(choices)
        answer["log_probabilities"].append(log_probabilities)
    for output in generate(request["prompts"], max_tokens=request["generate"], ignore_eos=True):
        answer["continuations"].append(list(output.outputs[0].token_ids))
    Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
