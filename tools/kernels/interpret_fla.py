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
from helpers import fla_worker, tiny  # noqa: E402
from statetrim.evaluation import samples  # noqa: E402
from statetrim.families.delta_net import DeltaNet  # noqa: E402
from statetrim.runtime import loading  # noqa: E402
from statetrim.storage.text import Sequences  # noqa: E402
from statetrim.surgery import check  # noqa: E402

# Only now: the helpers hide fla and register the portable models, which fla's replace.
del sys.modules["fla"]
import fla  # noqa: E402

COMMANDS = (
    "calibrate", "prune", "check", "refit", "evaluate", "grad", "recover", "heads", "uneven",
    "sums", "rounded_sums", "trim",
)  # fmt: skip
COMMANDS_OF = {"sums": ("delta_net", "gated_deltanet", "kda"), "rounded_sums": ("delta_net",)}
"""Commands of some types alone: those that `statetrim.portable` runs too, and among them the one
whose chunks cannot be compared in float32."""
HALF_PRECISION = ("delta_net", "gated_deltaproduct")
"""Types whose kernels for chunks refuse float32."""
NEED_A_CUT = ("check", "refit", "evaluate", "recover")
KEPT_SHAPES = {"delta_net": (8, 4)}
IN_CHUNKS = ("calibrate", "check", "sums", "rounded_sums")
"""Commands that read 72 tokens. fla prefills more than 64 in chunks, and fewer one by one, which is
faster here; with gradients it always takes chunks."""
SUMS_FOR = ("drrqr", "energy", "grad")
check.DECODED_TOKENS = 3
# In float32 only chunks are refused, and commands that compute in it read fewer tokens here.
DeltaNet.refuses_float32 = lambda self, config: False  # type: ignore[method-assign]


class Attempt:
    """One model type: its checkpoint below `folder`, and a method per command."""

    def __init__(self, model_type: str, folder: Path) -> None:
        self.model_type, self.folder = model_type, folder
        self.model = st.open(build(model_type, folder / "model"))
        keys, values = KEPT_SHAPES.get(model_type, (8, 8))
        self.cuts_values = model_type not in fla_worker.NO_VALUES
        self.shape = f"{keys}x{values if self.cuts_values else '100%'}"
        self.tokens = 0
        self.statistics: st.Statistics | None = None
        self.plan: st.Plan | None = None
        self.small: st.Checkpoint | None = None

    def run(self, command: str) -> dict[str, Any]:
        """What `command` measured."""
        self.tokens = 72 if command in IN_CHUNKS else 24
        if self.model_type in HALF_PRECISION and command in ("check", "sums"):  # in float32
            self.tokens = 24
        check.TOKENS = self.tokens
        samples.AGREEMENT_LENGTH = self.tokens
        if command in NEED_A_CUT and self.small is None:
            raise RuntimeError("there is no cut")
        result: dict[str, Any] = getattr(self, command)()
        return result

    def texts(self, count: int) -> Sequences:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(1, tiny.VOCABULARY, (count, self.tokens), generator=generator)
        return Sequences(ids.int(), {"text": "random ids"})

    def calibrate(self) -> dict[str, Any]:
        methods = ("drrqr", "readout_greedy") if self.cuts_values else ("drrqr",)
        self.statistics = st.calibrate(self.model, self.texts(1), methods=methods, progress=False)
        return {"tokens": self.tokens}

    def prune(self) -> dict[str, Any]:
        self.plan = st.select(
            self.model, "drrqr,readout_greedy", self.shape, statistics=self.statistics
        )
        self.small = st.prune(self.model, self.plan, self.folder / "small", progress=False)
        return {"shape": self.shape}

    def check(self) -> dict[str, Any]:
        result = check.compare_cut(self.model, self.plan, self.small)
        return {
            "cut = masked": result.sliced_against_masked,
            "prefill = decode": result.prefill_against_decode,
            "prefill = decode, original": result.prefill_against_decode_before,
        }

    def refit(self) -> dict[str, Any]:
        sums = st.calibrate(self.small, self.texts(4), original=self.model, progress=False)
        st.refit(self.small, sums, out=self.folder / "refitted", progress=False)
        return {}

    def evaluate(self) -> dict[str, Any]:
        words = tiny.write_text(self.folder / "test.jsonl", 400)
        scores = st.evaluate(
            self.small, baseline=self.model, tasks=["text"], text=words, limit=2, progress=False
        )
        return {"scores": len(scores.scores)}

    def grad(self) -> dict[str, Any]:
        st.calibrate(self.model, self.texts(1), methods=("grad",), progress=False)
        return {}

    def recover(self) -> dict[str, Any]:
        st.recover(
            self.small, teacher=self.model, text=self.texts(4), tokens=2 * self.tokens,
            length=self.tokens, batch_size=2, out=self.folder / "recovered", progress=False,
        )  # fmt: skip
        return {}

    def heads(self) -> dict[str, Any]:
        return self.cut_and_check(self.model, "50%heads", method="rand")

    def uneven(self) -> dict[str, Any]:
        """Two layers, of which the second alone is cut."""
        model = st.open(build(self.model_type, self.folder / "two-layers", layers=2))
        to = f"0=100%x100%,1={self.shape}"
        return self.cut_and_check(model, to, method="rand")

    def cut_and_check(self, model: st.Checkpoint, to: str, **methods: str) -> dict[str, Any]:
        plan = st.select(model, to=to, **methods)
        out = self.folder / f"cut-to-{to.partition(',')[0]}"
        small = st.prune(model, plan, out, uneven="," in to, progress=False)
        return {"cut = masked": check.compare_cut(model, plan, small).sliced_against_masked}

    def sums(self) -> dict[str, Any]:
        """Sums collected through fla, and in another process through `statetrim.portable`."""
        return differences(self.collected("float32"), self.collected_elsewhere("float32"))

    def rounded_sums(self) -> dict[str, Any]:
        """Sums through fla in bfloat16, and as much through `statetrim.portable`, each against
        those of `statetrim.portable` in float32."""
        exact = self.collected_elsewhere("float32")
        through_fla = differences(self.collected("bfloat16"), exact)
        portable = differences(self.collected_elsewhere("bfloat16"), exact)
        return through_fla | {f"portable {name}": portable[name] for name in portable}

    def collected(self, dtype: str) -> st.Statistics:
        words = tiny.write_text(self.folder / "sums.jsonl", 400)
        return st.calibrate(
            self.model, words, methods=SUMS_FOR, progress=False, **self.limits(dtype)
        )

    def collected_elsewhere(self, dtype: str) -> st.Statistics:
        words = tiny.write_text(self.folder / "sums.jsonl", 400)
        out = self.folder / f"{dtype}-{self.tokens}"
        limits = self.limits(dtype).items()
        options = [text for name, value in limits for text in (f"--{name}", str(value))]
        command = ["calibrate", self.model.path, "--text", words, "--for", ",".join(SUMS_FOR)]
        subprocess.run(
            [sys.executable, "-m", "statetrim", *command, "-o", out, *options],
            check=True, capture_output=True, env=os.environ | {"TRITON_INTERPRET": "0"},
        )  # fmt: skip
        return st.Statistics.load(out)

    def limits(self, dtype: str) -> dict[str, Any]:
        return {"tokens": 2 * self.tokens, "length": self.tokens, "dtype": dtype, "recall": 0}

    def trim(self) -> dict[str, Any]:
        words = tiny.write_text(self.folder / "words.jsonl", 2000)
        st.trim(
            self.model, to=self.shape, text=words, tokens=4 * self.tokens, length=self.tokens,
            recall=0, tasks=["text"], limit=2, control=False,
            out=self.folder / "trimmed", progress=False,
        )  # fmt: skip
        return {}


def build(model_type: str, directory: Path, layers: int = 1) -> Path:
    """A random checkpoint with a tokenizer, stored in a dtype that fla's kernels take."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    fields = fla_worker.CONFIGS[model_type] | {"num_hidden_layers": layers}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:  # some begin as zeros
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    dtype = torch.bfloat16 if model_type in HALF_PRECISION else torch.float32
    model.to(dtype).save_pretrained(directory)
    tiny.write_tokenizer(directory)
    return directory


def differences(first: st.Statistics, second: st.Statistics) -> dict[str, float]:
    """Largest difference of sums of products, and of gradients, as a share of the largest value."""
    largest = {"products": 0.0, "gradients": 0.0}
    for layer in first.layers:
        for name in first.sum_names:
            a, b = (getattr(sums.sources["text"][layer], name) for sums in (first, second))
            difference = float((a - b).abs().max() / a.abs().max())
            kind = "gradients" if "gradient" in name else "products"
            largest[kind] = max(largest[kind], difference)
    return {kind: float(f"{value:.2g}") for kind, value in largest.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("types", nargs="*", help=f"of {', '.join(fla_worker.CONFIGS)}")
    parser.add_argument("--commands", nargs="+", default=COMMANDS, choices=COMMANDS)
    arguments = parser.parse_args()
    triton_on_cpu.mend_modules("fla.")
    loading.is_fla_usable = lambda device=None: True
    for model_type in arguments.types or fla_worker.CONFIGS:
        with tempfile.TemporaryDirectory() as folder:
            attempt = Attempt(model_type, Path(folder))
            for command in arguments.commands:
                if model_type not in COMMANDS_OF.get(command, (model_type,)):
                    continue
                started = time.process_time()
                line = {"type": model_type, "command": command, "fla": fla.__version__}
                with triton_on_cpu.launched_kernels() as kernels:
                    try:
                        line |= {"result": "run"} | attempt.run(command)
                    except Exception as problem:
                        reason = f"{type(problem).__name__}: {problem}".partition("\n")[0]
                        line["result"] = reason.replace(folder, "")
                if line["result"] == "run" and not kernels and command != "prune":
                    line["result"] = "no kernel of fla ran"
                line["kernels"] = len(kernels)
                line["cpu_seconds"] = round(time.process_time() - started, 1)
                print(json.dumps(line), flush=True)
                with arguments.results.open("a") as file:
                    file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
