"""transformers, as `ask.py` runs it.

A quantised checkpoint is loaded as it is stored, by the quantiser that its config names. statetrim
dequantises it by its own code instead: agreement of both shows that they read the same weights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import torch

GPU_KERNELS = ("fla", "causal_conv1d", "mamba_ssm")


class Engine:
    def __init__(self, request: dict[str, Any]) -> None:
        """Load model and tokenizer from local files, without remote code."""
        if not torch.cuda.is_available():  # transformers binds them whatever the device
            sys.modules.update(dict.fromkeys(GPU_KERNELS))  # type: ignore[arg-type]
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
        from transformers.quantizers import AutoHfQuantizer

        torch.set_grad_enabled(False)
        path, dtype = request["model"], getattr(torch, request["dtype"])
        local = {"local_files_only": True, "trust_remote_code": False}
        stored = getattr(AutoConfig.from_pretrained(path, **local), "quantization_config", None)
        if stored is not None and not AutoHfQuantizer.supports_quant_method(stored):
            # transformers only warns, and reads codes as weights
            method = stored["quant_method"]
            raise SystemExit(f"Error: transformers cannot load quant_method {method!r:.60}")
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, use_safetensors=True, **local, **request["options"]
        ).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(path, **local)
        self.version = f"transformers {version('transformers')}, torch {version('torch')}"

    def encode(self, texts: list[str]) -> list[list[int]]:
        return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def most_likely(self, sequences: list[list[int]]) -> Iterator[tuple[list[int], list[float]]]:
        for ids in sequences:
            input_ids = torch.tensor([ids], device=self.model.device)
            best = self.model(input_ids=input_ids).logits[0, :-1].float().log_softmax(-1).max(-1)
            yield best.indices.tolist(), best.values.tolist()

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[list[int]]:
        for ids in prompts:
            cache, generated = None, list[int]()
            for _ in range(tokens):
                input_ids = torch.tensor([ids], device=self.model.device)
                output = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True)
                cache, ids = output.past_key_values, [int(output.logits[0, -1].argmax())]
                generated += ids
            yield generated
