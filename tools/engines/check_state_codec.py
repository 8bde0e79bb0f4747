"""The C++ codec of plugins/llamacpp and ours on states of trained models, both against float64.

    python tools/engines/check_state_codec.py CODEC MODEL... --text wiki.test.txt -o results.jsonl

CODEC is plugins/llamacpp/codec_main.cpp, compiled. For each model and tolerance a line of results:
bytes of both as a share of float32, the worst error of what each decodes of the C++ code, and how
many heads have each code.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor

import statetrim as st
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load_live
from statetrim.snapshots.coding import Coded, decode, encode
from statetrim.snapshots.prompt import keys_first, slots

TOLERANCES = (0.02, 0.05, 0.1)


def trained_states(model: st.Checkpoint, text: Path, sequences: int, lengths: list[int]) -> Tensor:
    """States [heads, values, keys], as llama.cpp has them, after each of `lengths` tokens."""
    ids = Corpus(text, model).read(tokens=sequences * lengths[-1], length=lengths[-1]).ids
    live, cache, read, stored = load_live(model), None, 0, list[Tensor]()
    with torch.inference_mode():
        for length in lengths:
            _, cache = live.forward_with_cache(ids[:, read:length], cache)
            read = length
            for slot in slots(cache):
                if slot.is_state:
                    states = keys_first(slot.value, model).mT
                    stored.append(states.reshape(-1, *states.shape[-2:]).clone())
    return torch.cat(stored)


def run(codec: Path, words: list[object], data: Tensor) -> bytes:
    command = [str(codec), *map(str, words)]
    content = data.contiguous().numpy().tobytes()
    return subprocess.run(command, input=content, check=True, capture_output=True).stdout


def worst_error(states: Tensor, decoded: Tensor) -> float:
    difference = (decoded.double() - states.double()).flatten(1).norm(dim=1)
    return float((difference / states.double().flatten(1).norm(dim=1).clamp_min(1e-300)).max())


def compare(codec: Path, states: Tensor, tolerance: float) -> dict[str, object]:
    heads, rows, columns = states.shape
    written = run(codec, ["encode", heads, rows, columns, tolerance], states)
    payload = torch.frombuffer(bytearray(written), dtype=torch.uint8)
    own, coded = encode(states, tolerance), Coded((heads, rows, columns), payload)
    read = run(codec, ["decode", heads, rows, columns], payload)
    decoded = torch.frombuffer(bytearray(read), dtype=torch.float32).reshape(states.shape)
    return {
        "states": heads,
        "tolerance": tolerance,
        "share": round(coded.nbytes / states.nbytes, 5),
        "python_share": round(own.nbytes / states.nbytes, 5),
        "worst_error": worst_error(states, decoded),
        "worst_error_read_by_python": worst_error(states, decode(coded)),
        "python_worst_error": worst_error(states, decode(own)),
        "heads": {str(mode): count for mode, count in Counter(coded.codes.modes.tolist()).items()},
        "python_heads": {
            str(mode): count for mode, count in Counter(own.codes.modes.tolist()).items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("codec", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--sequences", type=int, default=16)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 128, 256, 512])
    options = parser.parse_args()
    for path in options.models:
        states = trained_states(st.open(path), options.text, options.sequences, options.lengths)
        for tolerance in TOLERANCES:
            line = json.dumps({"model": path.name, **compare(options.codec, states, tolerance)})
            print(line, flush=True)
            with options.out.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
