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
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # past any http_proxy


def convert(model: Path, out: Path, dtype: str, converter: Path) -> bool:
    """Write `model` to `out`; False where llama.cpp does not know its tokenizer.

    All is asked in token ids, so an unknown one may stand under the name of GPT-2's.
    """
    sys.path.insert(0, str(converter.parent))
    from conversion import base

    known, recognise = [True], base.TextModel.get_vocab_base_pre

    def tolerant(self: Any, tokenizer: Any) -> str:
        try:
            return str(recognise(self, tokenizer))
        except NotImplementedError:
            known[0] = False
            return "gpt-2"

    base.TextModel.get_vocab_base_pre = tolerant
    arguments = [str(converter), str(model), "--outfile", str(out), "--outtype", OUTTYPES[dtype]]
    qwen = "qwen" in (model / "config.json").read_text(encoding="utf-8").lower()
    if qwen and not has_mtp(model):  # of other types the option is refused
        arguments.append("--no-mtp")
    before, sys.argv = sys.argv, arguments
    try:
        runpy.run_path(str(converter), run_name="__main__")
    finally:
        sys.argv = before
    return known[0]


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
        off = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.flash_attn_type = off
    threads = int(os.environ.get("OMP_NUM_THREADS", "0"))
    if threads:
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    for name, value in options.items():
        setattr(parameters, name, value)
    return xllamacpp.Server(parameters)


def post(address: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{address}/{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with DIRECT.open(request, timeout=600) as answer:
        return json.load(answer)


def choose(address: str, ids: list[int]) -> tuple[int, float | None]:
    """The most likely token after `ids`, and its log-probability.

    The server keeps the state of what it read, so one more token costs one token. It drops the
    probability of a token that ends within a character.
    """
    body = {"prompt": ids, "n_predict": 1, "temperature": 0.0, "n_probs": 1, "return_tokens": True}
    found = post(address, "completion", body | {"cache_prompt": True})
    token = int(found["tokens"][0])
    likely = [one for one in found.get("completion_probabilities", []) if one["id"] == token]
    return token, float(likely[0]["logprob"]) if likely else None


def go_on(address: str, prompt: list[int], tokens: int) -> list[int]:
    said: list[int] = []
    for _ in range(tokens):
        said.append(choose(address, prompt + said)[0])
    return said


def main() -> None:
    request = json.loads(Path(sys.argv[1]).read_text())
    options = dict(request["options"])
    usual = Path(sys.prefix, "llama.cpp", "convert_hf_to_gguf.py")
    converter = Path(options.pop("converter", usual))
    if not converter.is_file():
        raise SystemExit(f"Error: there is no converter {converter}; name llama.cpp's own")
    with tempfile.TemporaryDirectory() as folder:
        gguf = Path(folder, "model.gguf")
        known = convert(Path(request["model"]), gguf, request["dtype"], converter)
        server = serve(gguf, request, options)
        address = server.listening_address
        readings = [
            [choose(address, ids[:count]) for count in range(1, len(ids))]
            for ids in request["sequences"]
        ]
        answer = {
            "engine": f"llama.cpp by xllamacpp {version('xllamacpp')}",
            "encoded": [
                post(address, "tokenize", {"content": text, "add_special": False})["tokens"]
                for text in request["texts"]
            ]
            if known
            else None,
            "choices": [[token for token, _ in reading] for reading in readings],
            "log_probabilities": [[likely for _, likely in reading] for reading in readings],
            "continuations": [go_on(address, p, request["generate"]) for p in request["prompts"]],
        }
        Path(sys.argv[2]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
