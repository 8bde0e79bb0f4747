"""Every step on every quantised format: run, refused with its sentence, or not applicable.

    python studies/quantised_matrix.py run --work DIR
    python studies/quantised_matrix.py page

The checkpoints are small and random, in the layouts and with the blocks of public releases.
`verify` loads them as they are stored, in a transformers process of its own. Finished formats in
the results are kept.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import statetrim as st  # noqa: E402
from helpers import quantized, tiny  # noqa: E402
from helpers.quantized import FLOAT8, INT4, Format, compressed, quantize_checkpoint  # noqa: E402
from runner import fill, start, study_parser, table  # noqa: E402
from statetrim.runtime.loading import load  # noqa: E402

SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 256, "linear_key_head_dim": 64,
    "linear_value_head_dim": 64, "head_dim": 32,
}  # fmt: skip
SHAPE = "32x32"
SCORED: dict[str, Any] = {"tasks": ["text"], "limit": 4, "progress": False}
CALIBRATION: dict[str, Any] = {
    "tokens": 2048, "length": 64, "batch_size": 4, "recall": 0.0, "progress": False
}  # fmt: skip


def gptq(weight: Tensor) -> dict[str, Tensor]:
    """As AutoGPTQ and GPTQModel store 4 bits: words of 8 input channels, and their order."""
    outputs, inputs = weight.shape
    return {
        "qweight": torch.zeros(inputs // 8, outputs, dtype=torch.int32),
        "qzeros": torch.zeros(inputs // 128, outputs // 8, dtype=torch.int32),
        "scales": torch.ones(inputs // 128, outputs, dtype=torch.float16),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // 128,
    }


def awq(weight: Tensor) -> dict[str, Tensor]:
    """As AutoAWQ stores 4 bits: words of 8 output channels."""
    outputs, inputs = weight.shape
    return {
        "qweight": torch.zeros(inputs, outputs // 8, dtype=torch.int32),
        "qzeros": torch.zeros(inputs // 128, outputs // 8, dtype=torch.int32),
        "scales": torch.ones(inputs // 128, outputs, dtype=torch.float16),
    }


def bitsandbytes(weight: Tensor) -> dict[str, Tensor]:
    """As bitsandbytes stores NF4: one column of bytes, and scales of 64 elements."""
    return {
        "weight": torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8),
        "weight.absmax": torch.ones(weight.numel() // 64),
        "weight.quant_map": torch.ones(16),
        "weight.quant_state.bitsandbytes__nf4": torch.zeros(80, dtype=torch.uint8),
    }


def zero_points(weight: Tensor) -> dict[str, Tensor]:
    """W4A16 with zero points, as compressed-tensors stores asymmetric groups."""
    stored = RELEASES["compressed-tensors W4A16, groups of 128"].quantize(weight)
    rows, groups = stored["weight_scale"].shape
    return stored | {"weight_zero_point": torch.zeros(rows // 8, groups, dtype=torch.int32)}


RELEASES: dict[str, Format] = {
    "fine-grained FP8, blocks of 128x128": quantized.fine_grained(128),
    "compressed-tensors FP8 by tensor": quantized.FORMATS["fp8 by tensor"],
    "compressed-tensors FP8 by row": quantized.FORMATS["fp8 by row"],
    "compressed-tensors FP8, blocks of 128x128": compressed(
        "float-quantized", False, **FLOAT8, strategy="block", block_structure=[128, 128]
    ),
    "compressed-tensors INT8 by row": quantized.FORMATS["int8 by row"],
    "compressed-tensors W4A16 by row": quantized.FORMATS["int4 by row"],
    "compressed-tensors W4A16, groups of 128": compressed(
        "pack-quantized", False, **INT4, strategy="group", group_size=128
    ),
    "compressed-tensors NVFP4": quantized.FORMATS["nvfp4"],
    "ModelOpt FP8 by tensor": quantized.FORMATS["modelopt fp8"],
    "ModelOpt FP8 by row": quantized.FORMATS["modelopt fp8 by row"],
    "ModelOpt NVFP4": quantized.FORMATS["modelopt nvfp4"],
    "GPTQ": Format(gptq, {"quant_method": "gptq", "bits": 4, "group_size": 128}, False),
    "AWQ": Format(awq, {"quant_method": "awq", "bits": 4, "group_size": 128}, False),
    "bitsandbytes NF4": Format(
        bitsandbytes, {"quant_method": "bitsandbytes", "load_in_4bit": True}, False
    ),
}
RELEASES["compressed-tensors W4A16 with zero points"] = Format(
    zero_points, RELEASES["compressed-tensors W4A16, groups of 128"].config, False
)
ONLY_MLP = "compressed-tensors NVFP4, linear attention in 16 bits"
RELEASES[ONLY_MLP] = RELEASES["compressed-tensors NVFP4"]


class Case:
    """One format: its checkpoint, its cuts, and what the steps gave."""

    def __init__(self, name: str, work: Path, original: Path, text: Path) -> None:
        self.work, self.original, self.text = work, original, text
        self.form = RELEASES[name]
        # compressed-tensors computes NVFP4 in bfloat16, which does not multiply by float32
        self.engine_dtype = "bfloat16" if "NVFP4" in name else "float32"
        self.only = (lambda tensor: "mlp" in tensor) if name == ONLY_MLP else (lambda tensor: True)
        self.model = quantize_checkpoint(original, work / "model", self.form, self.only)
        self.cut = self.model  # until there is one

    def inspect(self) -> str:
        return st.inspect(self.model).quantized

    def prune(self) -> str:
        plan = st.select(self.model, "l1,readout_l1", SHAPE)
        self.cut = st.prune(self.model, plan, self.work / "cut", progress=False).path
        return requantized_text(self.cut)

    def sibling(self) -> str:
        """Also the KL divergence from the 16-bit cut, and that of quantising the cut."""
        plan = st.select(self.original, "l1,readout_l1", SHAPE)
        self.cut = st.prune(self.model, plan, self.work / "sibling", progress=False).path
        plain = st.prune(self.original, plan, self.work / "plain", progress=False).path
        after = quantize_checkpoint(plain, self.work / "after", self.form, self.only)
        expected = logits(plain)
        figures = (divergence(expected, logits(self.cut)), divergence(expected, logits(after)))
        return "KL to the 16-bit cut {:.1e}; of the cut quantised {:.1e}".format(*figures)

    def refit(self) -> str:
        statistics = st.calibrate(self.cut, self.text, original=self.model, **CALIBRATION)
        refitted = st.refit(self.cut, statistics, out=self.work / "refitted", progress=False)
        record = json.loads((refitted.path / "statetrim" / "refit.json").read_text())
        before = max(layer["before"] for layer in record["layers"].values())
        after = max(layer["after"] for layer in record["layers"].values())
        return f"error of the worst layer {before:.0%} to {after:.0%}"

    def evaluate(self) -> str:
        scores = st.evaluate([self.cut], baseline=self.model, text=self.text, **SCORED)
        values = [f"{score.model} {score.metric} {score.value:.4g}" for score in scores.scores]
        return ", ".join(values)

    def verify(self) -> str:
        verification = st.verify(
            self.cut, baseline=self.model, engine="transformers", engine_python=sys.executable,
            text=self.text, count=4, length=48, generate=8, dtype=self.engine_dtype,
        )  # fmt: skip
        for reason in verification.refusals.values():
            raise st.StatetrimError(reason)
        for faults in verification.faults.values():
            raise st.StatetrimError(faults[0])
        places = sum(sum(agreement.places) for agreement in verification.agreements)
        agreed = sum(sum(agreement.agreed) for agreement in verification.agreements)
        differences = [agreement.largest_difference or 0 for agreement in verification.agreements]
        return f"{agreed} of {places} choices equal, log-probabilities to {max(differences):.1g}"


STEPS: dict[str, Callable[[Case], str]] = {
    "inspect": Case.inspect,
    "prune": Case.prune,
    "prune, sibling's plan": Case.sibling,
    "refit": Case.refit,
    "evaluate": Case.evaluate,
    "verify": Case.verify,
}
NEEDS_A_CUT = ("refit", "evaluate", "verify")


def requantized_text(cut: Path) -> str:
    """How many weights of the cut were quantised again, and their largest error."""
    record = json.loads((cut / "statetrim" / "prune.json").read_text())
    errors = record.get("requantized") or {}
    if not errors:
        return "exact"
    return f"{len(errors)} weights quantised again, error {max(errors.values()):.1%} at most"


def logits(model: Path) -> Tensor:
    ids = torch.randint(tiny.VOCABULARY, (8, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        result: Tensor = load(model, dtype="float32")(input_ids=ids).logits
    return result


def divergence(expected: Tensor, actual: Tensor) -> float:
    """KL divergence in nats, mean over positions."""
    log_expected, log_actual = expected.log_softmax(-1), actual.log_softmax(-1)
    return float((log_expected.exp() * (log_expected - log_actual)).sum(-1).mean())


def run_step(case: Case, name: str) -> dict[str, str]:
    """The outcome of one step, and what it gave or why it was refused."""
    if name in NEEDS_A_CUT and case.cut == case.model:
        return {"outcome": "not applicable", "detail": "there is no cut"}
    try:
        return {"outcome": "run", "detail": STEPS[name](case)}
    except st.StatetrimError as refusal:
        sentence = str(refusal).replace(str(case.work), "").replace("/model", "MODEL")
        return {"outcome": "refused", "detail": sentence}


def run() -> None:
    options = study_parser(__doc__, "work", results="results/quantised.json").parse_args()
    rows: dict[str, Any] = {}
    if options.results.exists():
        rows = json.loads(options.results.read_text())["rows"]
    options.work.mkdir(parents=True, exist_ok=True)
    original = options.work / "original"
    if not original.exists():
        tiny.build("qwen3_5_text", original, "1GB", **SIZES)
    text = tiny.write_text(options.work / "text.jsonl", 12_000)
    packages = ("torch", "transformers", "compressed-tensors")
    versions = {package: version(package) for package in packages}
    for name in RELEASES:
        if name in rows:
            continue
        work = options.work / "case"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        case = Case(name, work, original, text)
        rows[name] = {step: run_step(case, step) for step in STEPS}
        print(name, json.dumps(rows[name], indent=1), flush=True)
        ordered = {name: rows[name] for name in RELEASES if name in rows}
        written = json.dumps({"versions": versions, "rows": ordered}, indent=2)
        options.results.write_text(written + "\n")


_WORDS = {"run": "yes", "refused": "refused", "not applicable": "n/a"}


def matrix(rows: dict[str, Any]) -> str:
    """A table of outcomes; refusals have a number, and their sentences follow."""
    lines = []
    sentences: list[str] = []
    for name, cells in rows.items():
        line = [name]
        for step in STEPS:
            cell = cells[step]
            word = _WORDS[cell["outcome"]]
            if cell["outcome"] == "refused":
                if cell["detail"] not in sentences:
                    sentences.append(cell["detail"])
                word += f" ({1 + sentences.index(cell['detail'])})"
            elif step == "prune" and cell["outcome"] == "run":
                word = short_error(cell["detail"])
            line.append(word)
        lines.append(line)
    numbered = [f"{n}. `{text.replace('`', '')}`" for n, text in enumerate(sentences, 1)]
    header = ["format", *STEPS]
    return "\n".join([table(header, lines, left=len(header)), "", *numbered])


def short_error(detail: str) -> str:
    """ "exact", or the largest error of the weights that were quantised again."""
    match = re.search(r"error (\S+%) at most", detail)
    return f"error {match[1]}" if match else detail


def losses(rows: dict[str, Any]) -> str:
    """KL divergences from the 16-bit cut: of the cut release, and of the cut quantised."""
    lines = []
    for name, cells in rows.items():
        figures = re.findall(r"\d\.\de[+-]\d+", cells["prune, sibling's plan"]["detail"])
        if len(figures) == 2:
            lines.append([name, *figures])
    return table(["format", "quantised, then cut", "cut, then quantised"], lines)


def page(results: Path) -> None:
    rows = json.loads((results / "quantised.json").read_text())["rows"]
    fill(results / "quantised.md", {"matrix": matrix(rows), "losses": losses(rows)})


if __name__ == "__main__":
    start(page, run=run)
