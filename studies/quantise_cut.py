"""Quantise a model and its cut with public tools, and measure what each step loses.

    python studies/quantise_cut.py MODEL CUT --test TEXT --work DIR --results FILE

Runs in an environment of its own, with torch, llmcompressor, torchao, auto-round and
nvidia-modelopt. transformers loads every result but ModelOpt's, which it does not know. NLL is per
token on windows of the test text; recall is MQAR.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import mqar
from arguments import study_parser

PAIRS = 63
GROUP = 32  # divides the reference model's widths; 128 is usual for large models


def main() -> None:
    """Measure both models, unquantised and by every tool, and write one row for each."""
    parser = study_parser(__doc__, "model", "test", "work", "results", windows=80, length=256)
    parser.add_argument("cut", type=Path)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, source in (("original", arguments.model), ("cut", arguments.cut)):
        for tool, quantise in TOOLS.items():
            out = arguments.work / f"{name}-{tool.replace(' ', '-')}"
            if not (out / "config.json").exists():
                quantise(source, out)
            if tool.startswith("ModelOpt"):
                continue
            row = {"model": name, "tool": tool, **measure(out, source, arguments)}
            rows.append(row)
            print(row, flush=True)
    packages = (
        "torch",
        "transformers",
        "llmcompressor",
        "compressed-tensors",
        "torchao",
        "auto-round",
        "nvidia-modelopt",
    )
    versions = {package: version(package) for package in packages}
    text = json.dumps({"versions": versions, "rows": rows}, indent=2)
    arguments.results.write_text(text + "\n")


@torch.no_grad()
def measure(model: Path, tokenizer: Path, arguments: Any) -> dict[str, float]:
    """NLL per token on the test text, recall at 63 pairs, and MiB of weights."""
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    encoded = AutoTokenizer.from_pretrained(tokenizer)(arguments.test.read_text())["input_ids"]
    count = arguments.windows * arguments.length
    windows = torch.tensor(encoded[:count]).reshape(arguments.windows, arguments.length)
    total = 0.0
    for rows in torch.split(windows, 8):
        logits = loaded(input_ids=rows).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        total += float(loss) * len(rows)
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    return {
        "nll": round(total / len(windows), 5),
        "recall": round(mqar.accuracy(loaded, PAIRS, rows=32), 4),
        "mib": round(size / 2**20, 2),
    }


def unquantised(source: Path, out: Path) -> None:
    """The model itself, in bfloat16."""
    save(AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16), source, out)


def llmcompressor(**scheme: Any) -> Callable[[Path, Path], None]:
    """A scheme of llm-compressor; `lm_head` and small gates stay in 16 bits."""

    def quantise(source: Path, out: Path) -> None:
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier

        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        ignore = ["lm_head", "re:.*in_proj_[ab]$"]
        oneshot(model=model, recipe=QuantizationModifier(ignore=ignore, **scheme))
        save(model, source, out)

    return quantise


def torchao(source: Path, out: Path) -> None:
    """INT8 weights by torchao."""
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    config = TorchAoConfig(Int8WeightOnlyConfig(version=2))
    model = AutoModelForCausalLM.from_pretrained(
        source, dtype=torch.bfloat16, quantization_config=config
    )
    save(model, source, out)


def autoround(source: Path, out: Path) -> None:
    """W4A16 by AutoRound without tuning, in compressed-tensors' format."""
    from auto_round import AutoRound

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    tokenizer = AutoTokenizer.from_pretrained(source)
    rounding = AutoRound(
        model, tokenizer, scheme="W4A16", group_size=GROUP, iters=0, disable_opt_rtn=True
    )
    _, written = rounding.quantize_and_save(f"{out}.parent", format="auto_round")
    Path(written[0] if isinstance(written, list) else written).rename(out)


def modelopt(config: str) -> Callable[[Path, Path], None]:
    """A scheme of ModelOpt; random tokens calibrate its scales of activations."""

    def quantise(source: Path, out: Path) -> None:
        import modelopt.torch.quantization as quantization
        from modelopt.torch.export import export_hf_checkpoint

        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
        ids = torch.randint(model.config.vocab_size, (4, 64))
        quantization.quantize(
            model, getattr(quantization, config), lambda model: model(input_ids=ids)
        )
        export_hf_checkpoint(model, export_dir=out)
        AutoTokenizer.from_pretrained(source).save_pretrained(out)

    return quantise


def save(model: Any, source: Path, out: Path) -> None:
    """Write the model and its tokenizer."""
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)


_INT4_GROUPS = {
    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP,
}  # fmt: skip
TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "none": unquantised,
    "llm-compressor FP8 dynamic": llmcompressor(targets="Linear", scheme="FP8_DYNAMIC"),
    "llm-compressor W4A16": llmcompressor(
        config_groups={"group_0": {"targets": ["Linear"], "weights": _INT4_GROUPS}}
    ),
    "llm-compressor NVFP4": llmcompressor(targets="Linear", scheme="NVFP4A16"),
    "torchao INT8": torchao,
    "AutoRound W4A16": autoround,
    "ModelOpt FP8": modelopt("FP8_DEFAULT_CFG"),
    "ModelOpt NVFP4": modelopt("NVFP4_DEFAULT_CFG"),
}


if __name__ == "__main__":
    main()
