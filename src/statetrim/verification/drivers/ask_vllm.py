"""vLLM, as `ask.py` runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # errors appear in this process
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import vllm
from vllm import LLM, SamplingParams


class Engine:
    def __init__(self, request: dict[str, Any]) -> None:
        longest = max(map(len, request["sequences"] + request["prompts"])) + request["generate"] + 1
        arguments = {"enforce_eager": True, "max_model_len": longest, "max_num_seqs": 8}
        arguments |= {"dtype": request["dtype"], "load_format": "safetensors"}
        self.llm = LLM(model=request["model"], **(arguments | request["options"]))
        self.version = f"vLLM {vllm.__version__}, {vllm.platforms.current_platform.device_name}"

    def encode(self, texts: list[str]) -> list[list[int]]:
        tokenizer = self.llm.get_tokenizer()
        return [tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def most_likely(self, sequences: list[list[int]]) -> Iterator[tuple[list[int], list[float]]]:
        """The most likely token at every position after the first, and its log-probability."""
        for output in self._run(sequences, max_tokens=1, prompt_logprobs=1):
            tokens, log_probabilities = [], []
            for position in output.prompt_logprobs[1:]:
                for token, entry in position.items():
                    if entry.rank == 1:
                        tokens.append(int(token))
                        log_probabilities.append(float(entry.logprob))
            yield tokens, log_probabilities

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[list[int]]:
        for output in self._run(prompts, max_tokens=tokens, ignore_eos=True):
            yield list(output.outputs[0].token_ids)

    def _run(self, sequences: list[list[int]], **sampling: Any) -> list[Any]:
        prompts = [{"prompt_token_ids": ids} for ids in sequences]
        greedy = SamplingParams(temperature=0.0, **sampling)
        return list(self.llm.generate(prompts, greedy, use_tqdm=False))
