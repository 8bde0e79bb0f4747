"""Record what llama.cpp allocates for the states of small hybrids, and the size of a checkpoint.

    just engines DIRECTORY

Runs in the environment of make_llamacpp.sh. Random models are made from configs, converted by
llama.cpp's converter and started by xllamacpp; the figures are those of its log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

HEADS = {"linear_num_key_heads": 16, "linear_num_value_heads": 32}  # the log has two decimals
BASE = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "linear_conv_kernel_dim": 4,
    "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
CASES = [
    {"side": side, "layers": layers, "slots": slots, "context": 512}
    for side in (16, 32, 64, 128)
    for layers, slots in ((4, 1), (8, 3))
]
BUFFERS = re.compile(
    r"size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+) seqs +(\d+) rs_seq\), "
    r"R \((\w+)\): +([\d.]+) MiB, S \((\w+)\): +([\d.]+) MiB"
)
CHECKPOINT = re.compile(r"created context checkpoint .*?size = ([\d.]+) MiB")
ATTENTION = re.compile(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers")


def write_model(folder: Path, case: dict[str, int]) -> None:
    """A random Qwen3.5 text model with a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    widths = {"linear_key_head_dim": case["side"], "linear_value_head_dim": case["side"]}
    fields = BASE | HEADS | widths | {"num_hidden_layers": case["layers"]}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_5_text", **fields))
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = [*letters, "ab", "<end>"]  # llama.cpp wants a merge
    vocabulary = {name: i for i, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    fast.save_pretrained(folder)


def convert(folder: Path, out: Path) -> None:
    converter = Path(sys.prefix, "llama.cpp", "convert_hf_to_gguf.py")
    sys.path.insert(0, str(converter.parent))
    from conversion import base

    base.TextModel.get_vocab_base_pre = lambda *_: "gpt-2"
    arguments = [str(converter), str(folder), "--outfile", str(out), "--outtype", "f32", "--no-mtp"]
    saved, sys.argv = sys.argv, arguments
    try:
        runpy.run_path(str(converter), run_name="__main__")
    finally:
        sys.argv = saved


def start(case: dict[str, int]) -> None:
    """Serve one prompt in this process; everything is in the log on standard error."""
    import xllamacpp

    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder, "model"), case)
        convert(Path(folder, "model"), Path(folder, "model.gguf"))
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(Path(folder, "model.gguf"))
        parameters.n_parallel, parameters.n_ctx = case["slots"], case["context"] * case["slots"]
        parameters.verbosity = 5
        server = xllamacpp.Server(parameters)
        body = {"prompt": [i % 200 for i in range(400)], "n_predict": 2, "cache_prompt": True}
        request = urllib.request.Request(
            f"{server.listening_address}/completion",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=120
        ).read()
        os._exit(0)


def record(case: dict[str, int]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, timeout=300, check=False)
    log = (done.stdout + done.stderr).decode(errors="replace")
    buffers, attention = BUFFERS.search(log), ATTENTION.search(log)
    if buffers is None or attention is None:
        raise SystemExit(f"{case} failed:\n{log[-3000:]}")
    checkpoint = CHECKPOINT.search(log)
    return case | {
        "rows": int(buffers[2]),
        "state_mib": float(buffers[9]),
        "convolution_mib": float(buffers[7]),
        "dtypes": [buffers[6], buffers[8]],
        "cells": int(attention[2]),
        "attention_mib": float(attention[1]),
        "checkpoint_mib": float(checkpoint[1]) if checkpoint else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--case", type=json.loads, help="start one server here (used internally)")
    options = parser.parse_args()
    if options.case is not None:
        start(options.case)
        return
    results = [record(case) for case in CASES]
    lines = ",\n".join(map(json.dumps, results))
    head = f'"llama.cpp": "xllamacpp {version("xllamacpp")}"'
    options.output.write_text(
        f'{{{head},\n"heads": {json.dumps(BASE | HEADS)},\n"cases": [{lines}]}}\n'
    )
    print(len(results), "models started")


if __name__ == "__main__":
    main()
