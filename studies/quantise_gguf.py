"""Quantise a model and its cut with llama.cpp, and measure what each step loses.

    python studies/quantise_gguf.py MODEL CUT --test TEXT --work DIR --results FILE

Runs in the environment of `tools/engines/make_llamacpp.sh`. llama.cpp's converter writes GGUF, its
quantiser makes each type of it, and llama.cpp itself (both by cyllama) reads the test text. NLL is
per token on windows of the text; recall is MQAR. Where a width does not fit the blocks of a type,
llama.cpp takes another one: the tensors of each type are counted.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from cyllama.llama import llama_cpp
from gguf import GGUFReader
from torch import Tensor
from transformers import AutoTokenizer

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src" / "statetrim" / "verification" / "drivers"))
sys.path.insert(0, str(ROOT / "tools" / "engines" / "in_llamacpp"))

from ask_llamacpp import convert  # noqa: E402
from convert_and_quantise import quantise  # noqa: E402

import mqar  # noqa: E402
from arguments import study_parser  # noqa: E402

PAIRS, ROWS = 63, 32
TYPES = ("Q8_0", "Q4_K_M", "Q4_0")


class Model(llama_cpp.LlamaModel):  # type: ignore[misc]
    """A loaded GGUF file; cyllama 0.2.18 reads logits by an attribute that its class lacks."""

    @property
    def n_vocab(self) -> int:
        return int(self.get_vocab().n_vocab)


def main() -> None:
    """Measure both models, in float32 and by every type, and write one row for each."""
    parser = study_parser(__doc__, "model", "test", "work", "results", windows=40, length=256)
    parser.add_argument("cut", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, source in (("original", arguments.model), ("cut", arguments.cut)):
        encoded = AutoTokenizer.from_pretrained(source)(arguments.test.read_text())["input_ids"]
        count = arguments.windows * arguments.length
        windows = torch.tensor(encoded[:count]).reshape(arguments.windows, arguments.length)
        plain = converted(source, arguments.work / f"{name}.gguf")
        paths = {"F32": plain}
        for kind in TYPES:
            paths[kind] = arguments.work / f"{name}-{kind}.gguf"
            quantise(plain, paths[kind], kind)
        for kind, path in paths.items():
            row = {"model": name, "type": kind, **measure(path, windows)}
            rows.append(row)
            print(row, flush=True)
    packages = ("cyllama", "xllamacpp", "gguf", "torch", "transformers")
    versions = {package: version(package) for package in packages}
    text = json.dumps({"versions": versions, "rows": rows}, indent=2)
    arguments.results.write_text(text + "\n")


def converted(model: Path, out: Path) -> Path:
    """The checkpoint as float32 GGUF, by llama.cpp's converter."""
    if not out.exists():
        convert(model, out, "float32", Path(sys.prefix, "llama.cpp", "convert_hf_to_gguf.py"))
    return out


def measure(path: Path, windows: Tensor) -> dict[str, Any]:
    """NLL per token, recall at 63 pairs, MiB of the file, and how many tensors have which type."""
    parameters = llama_cpp.LlamaContextParams()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = max(windows.shape[1], 4 * PAIRS)
    parameters.n_threads = parameters.n_threads_batch = 1
    model = Model(str(path), llama_cpp.LlamaModelParams(), verbose=False)
    context = llama_cpp.LlamaContext(model, parameters, verbose=False)
    total = 0.0
    for window in windows:
        logits = read(context, window, torch.arange(len(window) - 1))
        total += float(torch.nn.functional.cross_entropy(logits, window[1:]))
    ids, positions = mqar.batch(model.n_vocab, PAIRS, ROWS, torch.Generator().manual_seed(1234))
    correct = 0
    for row in ids:
        correct += int((read(context, row, positions).argmax(-1) == row[positions + 1]).sum())
    return {
        "nll": round(total / len(windows), 5),
        "recall": round(correct / (ROWS * PAIRS), 4),
        "mib": round(path.stat().st_size / 2**20, 2),
        "tensors": dict(Counter(tensor.tensor_type.name for tensor in GGUFReader(path).tensors)),
    }


def read(context: Any, ids: Tensor, positions: Tensor) -> Tensor:
    """Logits [positions, vocabulary] of a sequence that is read from an empty state."""
    context.kv_cache_clear()
    batch = llama_cpp.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
    batch.set_batch(ids.tolist(), 0, True)
    context.decode(batch)
    return torch.tensor([context.get_logits_ith(int(position)) for position in positions])


if __name__ == "__main__":
    main()
