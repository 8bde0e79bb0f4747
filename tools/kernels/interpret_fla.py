"""Run statetrim's commands on small models of fla, with fla's own layers and Triton kernels on a
CPU.

    python tools/kernels/interpret_fla.py results/interpreted-fla.jsonl
    python tools/kernels/interpret_fla.py OUT.jsonl kda gla --commands calibrate prune check

Appends a line for each command: "run", or the first line of what stopped it, and the CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import triton_on_cpu

triton_on_cpu.install()
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
warnings.simplefilter("ignore")

import torch  # noqa: E402

import statetrim as st  # noqa: E402
from helpers import fla_checkpoints, tiny  # noqa: E402
from statetrim.evaluation import samples  # noqa: E402
from statetrim.runtime import loading  # noqa: E402
from statetrim.storage.text import Sequences  # noqa: E402
from statetrim.surgery import check  # noqa: E402

# Only now: the helpers hide fla and register the portable models, which fla's replace.
del sys.modules["fla"]
import fla  # noqa: E402

COMMANDS = (
    "calibrate", "prune", "check", "refit", "evaluate", "grad", "recover", "heads", "sums", "trim",
)  # fmt: skip
PORTABLE = {"delta_net": "bfloat16", "gated_deltanet": "float32", "kda": "float32"}
"""Types that `statetrim.portable` runs too -> the dtype in which sums are compared."""
TOKENS = 72  # more than 64, so that fla prefills in chunks
check.DECODED_TOKENS, samples.AGREEMENT_LENGTH = 3, TOKENS


class Attempt:
    """One model type: its checkpoint below `folder`, and a method per command."""

    def __init__(self, model_type: str, folder: Path) -> None:
        self.model_type, self.folder = model_type, folder
        self.model = st.open(build(model_type, folder / "model"))
        keys, values = fla_checkpoints.KEPT_SHAPES.get(model_type, (8, 8))
        self.widths: dict[str, Any] = {"keep": keys}
        if model_type not in fla_checkpoints.NO_VALUES:
            self.widths |= {"keep_values": values, "value_method": "readout_greedy"}
        # In float32 some types have only the kernel that takes up to 64 tokens, one by one.
        check.TOKENS = 16 if self.model.family.refuses_float32(self.model.config) else TOKENS
        self.statistics: st.Statistics | None = None
        self.plan: st.Plan | None = None
        self.small: st.Checkpoint | None = None

    def calibrate(self) -> dict[str, Any]:
        methods = ("drrqr", "readout_greedy") if "keep_values" in self.widths else ("drrqr",)
        self.statistics = st.calibrate(self.model, texts(1), methods=methods, progress=False)
        return {"tokens": TOKENS}

    def prune(self) -> dict[str, Any]:
        self.plan = st.select(self.model, "drrqr", statistics=self.statistics, **self.widths)
        self.small = st.prune(self.model, self.plan, self.folder / "small", progress=False)
        return {"shape": f"{self.plan.keep}x{self.plan.keep_values or 'all'}"}

    def check(self) -> dict[str, Any]:
        result = check.compare_cut(self.model, self.plan, self.small)
        return {
            "cut = masked": result.sliced_against_masked,
            "prefill = decode": result.prefill_against_decode,
            "prefill = decode, original": result.prefill_against_decode_before,
        }

    def refit(self) -> dict[str, Any]:
        sums = st.calibrate(self.small, texts(1), original=self.model, progress=False)
        st.refit(self.small, sums, out=self.folder / "refitted", progress=False)
        return {}

    def evaluate(self) -> dict[str, Any]:
        words = tiny.write_text(self.folder / "test.jsonl", 400)
        scores = st.evaluate(
            self.small, baseline=self.model, tasks=["text"], text=words, limit=2, progress=False
        )
        return {"scores": len(scores.scores)}

    def grad(self) -> dict[str, Any]:
        st.calibrate(self.model, texts(1), methods=("grad",), progress=False)
        return {}

    def recover(self) -> dict[str, Any]:
        st.recover(
            self.small, teacher=self.model, text=texts(4), tokens=2 * TOKENS, length=TOKENS,
            batch_size=2, out=self.folder / "recovered", progress=False,
        )  # fmt: skip
        return {}

    def heads(self) -> dict[str, Any]:
        plan = st.select(self.model, keep_heads=0.5, head_method="rand")
        small = st.prune(self.model, plan, self.folder / "fewer-heads", progress=False)
        return {"cut = masked": check.compare_cut(self.model, plan, small).sliced_against_masked}

    def sums(self) -> dict[str, Any]:
        """Sums collected through fla, and in another process through `statetrim.portable`."""
        dtype = PORTABLE[self.model_type]
        words, out = tiny.write_text(self.folder / "sums.jsonl", 400), self.folder / "portable"
        limits = {"tokens": 2 * TOKENS, "length": TOKENS, "dtype": dtype, "recall": 0}
        options = [text for name, value in limits.items() for text in (f"--{name}", str(value))]
        command = ["calibrate", self.model.path, "--text", words, "--for", "drrqr,energy,grad"]
        subprocess.run(
            [sys.executable, "-m", "statetrim", *command, "-o", out, *options],
            check=True, capture_output=True, env=os.environ | {"TRITON_INTERPRET": "0"},
        )  # fmt: skip
        methods = ("drrqr", "energy", "grad")
        through_fla = st.calibrate(self.model, words, methods=methods, progress=False, **limits)
        return {
            name: float(f"{difference:.2g}")
            for name, difference in differences(through_fla, st.Statistics.load(out)).items()
        }

    def trim(self) -> dict[str, Any]:
        words = tiny.write_text(self.folder / "words.jsonl", 2000)
        keeps = {name: self.widths[name] for name in ("keep", "keep_values") if name in self.widths}
        st.trim(
            self.model, **keeps, text=words, tokens=4 * TOKENS, length=TOKENS, tasks=["text"],
            limit=2, control=False, benchmark=False, out=self.folder / "trimmed", progress=False,
        )  # fmt: skip
        return {}


def build(model_type: str, directory: Path) -> Path:
    """A random checkpoint of one layer, with a tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    fields = fla_checkpoints.CONFIGS[model_type] | {"num_hidden_layers": 1}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:  # some begin as zeros
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    model.save_pretrained(directory)
    tiny.write_tokenizer(directory)
    return directory


def differences(first: st.Statistics, second: st.Statistics) -> dict[str, float]:
    """Largest difference of each sum over all layers, as a share of its largest value."""
    largest: dict[str, float] = {}
    for layer in first.layers:
        for name in first.sum_names:
            a, b = (getattr(sums.sources["text"][layer], name) for sums in (first, second))
            difference = float((a - b).abs().max() / a.abs().max())
            largest[name] = max(largest.get(name, 0.0), difference)
    return largest


def texts(count: int) -> Sequences:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, tiny.VOCABULARY, (count, TOKENS), generator=generator)
    return Sequences(ids.int(), {"text": "random ids"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("types", nargs="*", help=f"of {', '.join(fla_checkpoints.CONFIGS)}")
    parser.add_argument("--commands", nargs="+", default=COMMANDS, choices=COMMANDS)
    arguments = parser.parse_args()
    triton_on_cpu.mend_modules("fla.")
    loading.is_fla_usable = lambda device=None: True
    for model_type in arguments.types or fla_checkpoints.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            attempt = Attempt(model_type, Path(folder))
            for command in arguments.commands:
                if command == "sums" and model_type not in PORTABLE:
                    continue
                started = time.process_time()
                line = {"type": model_type, "command": command, "fla": fla.__version__}
                with triton_on_cpu.launched_kernels() as kernels:
                    try:
                        line |= {"result": "run"} | getattr(attempt, command)()
                    except Exception as problem:
                        line["result"] = f"{type(problem).__name__}: {problem}".partition("\n")[0]
                line["kernels"] = len(kernels)
                line["cpu_seconds"] = round(time.process_time() - started, 1)
                print(json.dumps(line), flush=True)
                with arguments.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
