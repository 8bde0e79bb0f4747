"""llama.cpp: read a prompt and save its slot, or restore a slot, and continue.

    python slot.py GGUF save FILE TOKENS IDS.json
    python slot.py GGUF load FILE TOKENS IDS.json

Prints the continuation as JSON. With `load` the server starts empty and reuses the restored slot;
`cached` is how many tokens of the prompt it did not read again.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores http_proxy


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with OPENER.open(request, timeout=120) as answer:
        parsed: dict[str, Any] = json.load(answer)
    return parsed


def main() -> None:
    gguf, action, file, tokens, prompt = sys.argv[1:]
    ids, path = json.loads(Path(prompt).read_text()), Path(file)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = gguf
    parameters.n_ctx, parameters.n_parallel = len(ids) + int(tokens) + 8, 1
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.slot_save_path = f"{path.parent}/"
    parameters.cpuparams.n_threads = 1
    server = xllamacpp.Server(parameters)
    url = server.listening_address
    body = {"prompt": ids, "n_predict": int(tokens), "temperature": 0, "cache_prompt": True}
    body |= {"id_slot": 0, "return_tokens": True, "top_k": 1}
    if action == "save":
        post(f"{url}/completion", body | {"prompt": ids[:-1], "n_predict": 0})
        post(f"{url}/slots/0?action=save", {"filename": path.name})
    else:
        post(f"{url}/slots/0?action=restore", {"filename": path.name})
    answer = post(f"{url}/completion", body)
    print(json.dumps({"tokens": answer["tokens"], "cached": answer["timings"].get("cache_n")}))


if __name__ == "__main__":
    main()
