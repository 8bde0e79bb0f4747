"""llama.cpp reads sequences and continues prompts; see `drivers/__init__.py` for the two files.

The checkpoint is converted to GGUF by llama.cpp's own converter, which `options["converter"]` names
or which lies in `llama.cpp` below this environment. llama.cpp's server, which xllamacpp brings, is
then asked token by token: it tells the choice after a prompt only.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xllamacpp
from safetensors import safe_open

OUTTYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # past any http_proxy


def convert(model: Path, out: Path, dtype: str, converter: Path) -> bool:
    """Write `model` to `out`; False where llama.cpp does not know its tokenizer.

    All is asked in token ids, so an unknown one may stand under the name of GPT-2's.
    """
    sys.path.insert(0, str(converter.parent))
    from conversion import base

    is_known, stock_method = [True], base.TextModel.get_vocab_base_pre

    def tolerant(self: Any, tokenizer: Any) -> str:
        try:
            return str(stock_method(self, tokenizer))
        except NotImplementedError:
            is_known[0] = False
            return "gpt-2"

    base.TextModel.get_vocab_base_pre = tolerant
    arguments = [str(converter), str(model), "--outfile", str(out), "--outtype", OUTTYPES[dtype]]
    qwen = "qwen" in (model / "config.json").read_text(encoding="utf-8").lower()
    if qwen and not has_mtp(model):  # of other types the option is refused
        arguments.append("--no-mtp")
    saved_argv, sys.argv = sys.argv, arguments
    try:
        runpy.run_path(str(converter), run_name="__main__")
    finally:
        sys.argv = saved_argv
    return is_known[0]


def has_mtp(model: Path) -> bool:
    """Whether the checkpoint holds a head that foretells several tokens; else the converter must be
    told that there is none."""
    for path in model.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            if any(name.startswith("mtp.") for name in file.offset_keys()):
                return True
    return False


def serve(gguf: Path, request: dict[str, Any], options: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf)
    longest = max(map(len, request["sequences"] + request["prompts"])) + request["generate"] + 1
    parameters.n_ctx, parameters.n_parallel = longest, 1
    if request["dtype"] == "float32":  # all of it; flash attention computes in half precision
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        flash_off = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.flash_attn_type = flash_off
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    if threads:
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    for name, value in options.items():
        setattr(parameters, name, value)
    return xllamacpp.Server(parameters)


def post_json(address: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{address}/{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with OPENER.open(request, timeout=600) as answer:
        return json.load(answer)


def next_token(address: str, ids: list[int]) -> tuple[int, float | None]:
    """The most likely token after `ids`, and its log-probability.

    The server keeps the state of what it read, so one more token costs one token. It drops the
    probability of a token that ends within a character.
    """
    body = {"prompt": ids, "n_predict": 1, "temperature": 0.0, "n_probs": 1, "return_tokens": True}
    completion = post_json(address, "completion", body | {"cache_prompt": True})
    token = int(completion["tokens"][0])
    entries = [
        entry for entry in completion.get("completion_probabilities", []) if entry["id"] == token
    ]
    return token, float(entries[0]["logprob"]) if entries else None


def generate(address: str, prompt: list[int], tokens: int) -> list[int]:
    generated: list[int] = []
    for _ in range(tokens):
        generated.append(next_token(address, prompt + generated)[0])
    return generated


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    options = dict(request["options"])
    default_converter = Path(sys.prefix, "llama.cpp", "convert_hf_to_gguf.py")
    converter = Path(options.pop("converter", default_converter))
    if not converter.is_file():
        raise SystemExit(f"Error: there is no converter {converter}; name llama.cpp's own")
    with tempfile.TemporaryDirectory() as folder:
        gguf = Path(folder, "model.gguf")
        knows_tokenizer = convert(Path(request["model"]), gguf, request["dtype"], converter)
        server = serve(gguf, request, options)
        address = server.listening_address
        next_tokens = [
            [next_token(address, ids[:count]) for count in range(1, len(ids))]
            for ids in request["sequences"]
        ]
        answer = {
            "engine": f"llama.cpp by xllamacpp {version('xllamacpp')}",
            "encoded": [
                post_json(address, "tokenize", {"content": text, "add_special": False})["tokens"]
                for text in request["texts"]
            ]
            if knows_tokenizer
            else None,
            "choices": [[token for token, _ in row] for row in next_tokens],
            "log_probabilities": [
                [log_probability for _, log_probability in row] for row in next_tokens
            ],
            "continuations": [
                generate(address, p, request["generate"]) for p in request["prompts"]
            ],
        }
        Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
