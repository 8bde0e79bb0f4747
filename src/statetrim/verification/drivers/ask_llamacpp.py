"""llama.cpp, as `ask.py` runs it.

llama.cpp's converter writes the checkpoint as GGUF; it is `options["converter"]`, or lies in
`llama.cpp` below this environment. The server, a part of xllamacpp, gets one request per token,
because it reports the most likely token only after a prompt.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xllamacpp
from safetensors import safe_open

OUTTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores http_proxy


def convert(model: Path, out: Path, dtype: str, converter: Path) -> bool:
    """Convert `model` to a GGUF file; returns whether llama.cpp knows its tokenizer.

    An unknown tokenizer is converted as GPT-2's: sequences and prompts are token ids anyway.
    """
    sys.path.insert(0, str(converter.parent))
    from conversion import base

    is_known, stock_method = True, base.TextModel.get_vocab_base_pre

    def name_or_gpt2(self: Any, tokenizer: Any) -> str:
        nonlocal is_known
        try:
            return str(stock_method(self, tokenizer))
        except NotImplementedError:
            is_known = False
            return "gpt-2"

    base.TextModel.get_vocab_base_pre = name_or_gpt2
    arguments = [str(converter), str(model), "--outfile", str(out), "--outtype", OUTTYPES[dtype]]
    qwen = "qwen" in (model / "config.json").read_text(encoding="utf-8").lower()
    if qwen and not has_mtp(model):  # the converter refuses the option for other types
        arguments.append("--no-mtp")
    saved_argv, sys.argv = sys.argv, arguments
    try:
        runpy.run_path(str(converter), run_name="__main__")
    finally:
        sys.argv = saved_argv
    return is_known


def has_mtp(model: Path) -> bool:
    """Whether the checkpoint has a head for multi-token prediction."""
    for path in model.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            if any(name.startswith("mtp.") for name in file.offset_keys()):
                return True
    return False


def serve(gguf: Path, request: dict[str, Any], options: dict[str, Any]) -> Any:
    """Start a server with room for the longest sequence or prompt with its continuation.

    `options` are attributes of xllamacpp.CommonParams and override the others.
    """
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    longest = max(map(len, request["sequences"] + request["prompts"])) + request["generate"] + 1
    parameters.n_ctx, parameters.n_parallel = longest, 1
    if request["dtype"] == "float32":  # flash attention computes in half precision
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        flash_off = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.flash_attn_type = flash_off
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    if threads:
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    for name, value in options.items():
        setattr(parameters, name, value)
    return xllamacpp.Server(parameters)


class Engine:
    def __init__(self, request: dict[str, Any]) -> None:
        """Convert the checkpoint, in the working directory, and start a server of it."""
        options = dict(request["options"])
        default_converter = Path(sys.prefix, "llama.cpp", "convert_hf_to_gguf.py")
        converter = Path(options.pop("converter", default_converter))
        if not converter.is_file():
            raise SystemExit(f"Error: there is no converter {converter}; name llama.cpp's own")
        gguf = Path("model.gguf").absolute()
        self.knows_tokenizer = convert(Path(request["model"]), gguf, request["dtype"], converter)
        self.server = serve(gguf, request, options)
        self.version = f"llama.cpp by xllamacpp {version('xllamacpp')}"

    def encode(self, texts: list[str]) -> list[list[int]] | None:
        if not self.knows_tokenizer:
            return None
        bodies = [{"content": text, "add_special": False} for text in texts]
        return [list(self._post("tokenize", body)["tokens"]) for body in bodies]

    def most_likely(
        self, sequences: list[list[int]]
    ) -> Iterator[tuple[list[int], list[float | None]]]:
        for ids in sequences:
            best = [self._next_token(ids[:count]) for count in range(1, len(ids))]
            yield [token for token, _ in best], [log_probability for _, log_probability in best]

    def generate(self, prompts: list[list[int]], tokens: int) -> Iterator[list[int]]:
        for prompt in prompts:
            generated: list[int] = []
            for _ in range(tokens):
                generated.append(self._next_token(prompt + generated)[0])
            yield generated

    def _next_token(self, ids: list[int]) -> tuple[int, float | None]:
        """The most likely token after `ids`, and its log-probability, None if not reported.

        The server caches the state of a prompt, so that one more token costs one step. It reports
        no probability of a token that ends within a character.
        """
        body = {"prompt": ids, "n_predict": 1, "temperature": 0.0, "n_probs": 1}
        body |= {"return_tokens": True, "cache_prompt": True}
        completion = self._post("completion", body)
        token = int(completion["tokens"][0])
        for entry in completion.get("completion_probabilities", []):
            if entry["id"] == token:
                return token, float(entry["logprob"])
        return token, None

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.server.listening_address}/{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with OPENER.open(request, timeout=600) as answer:
            return json.load(answer)
