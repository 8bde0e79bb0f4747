"""Run every command on one small model on a GPU: ten minutes, and one file to send back.

    python benchmarks/gpu_smoke.py OUT [--model MODEL --text TEXT]

Without --model a random bfloat16 model in the Qwen3.5 layout is built, with a tokenizer and a text.
OUT/gpu-smoke.json gets devices, versions, and for every step its time, its peak memory, what was
expected of it, and the error it ended with, if any; paths are left out. Each step is a process of
its own, so that one that crashes does not stop the rest. On a machine without a GPU it runs too.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGES = (
    "statetrim", "torch", "transformers", "accelerate", "safetensors", "triton", "fla-core",
    "causal-conv1d", "mamba-ssm", "kernels", "vllm", "lm-eval", "peft",
)  # fmt: skip
SHAPE = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "full_attention_interval": 4,
}  # fmt: skip
WORDS = 200_000
TOKENS, LENGTH, BATCH = 16_384, 512, 8
LIMIT_SECONDS = 900.0


def steps(root: Path, model: str, text: str, num_gpus: int) -> Iterator[tuple[str, list[str]]]:
    """Names, and arguments of `statetrim`; one that begins with ':' is a function of this file."""
    sums, plan, small = root / "sums.safetensors", root / "plan.json", root / "small"
    run = ["--text", text, "--tokens", str(TOKENS), "--length", str(LENGTH)]
    run += ["--batch-size", str(BATCH)]
    methods = ["--for", "drrqr,s_wanda,readout_greedy"]
    yield "inspect", ["inspect", model]
    yield "calibrate", ["calibrate", model, *run, *methods, "-o", str(sums)]
    layerwise = root / "sums-layerwise.safetensors"
    yield "calibrate, layerwise", [
        "calibrate", model, *run, *methods, "--layerwise", "-o", str(layerwise)
    ]  # fmt: skip
    yield "layerwise beside whole", [":compare", str(sums), str(layerwise)]
    if num_gpus > 1:
        spread = root / "sums-spread.safetensors"
        yield "calibrate, spread", [
            "calibrate", model, *run, *methods, "--device-map", "auto", "-o", str(spread)
        ]  # fmt: skip
        yield "spread beside whole", [":compare", str(sums), str(spread)]
    few = ["--text", text, "--tokens", "4096", "--length", "256", "--batch-size", "4"]
    yield "calibrate, gradients", [
        "calibrate", model, *few, "--for", "grad", "-o", str(root / "gradients.safetensors")
    ]  # fmt: skip
    yield "select", [
        "select", model, "--method", "drrqr", "--to", "50%x50%", "--statistics", str(sums),
        "-o", str(plan),
    ]  # fmt: skip
    yield "prune", ["prune", model, str(plan), "-o", str(small)]
    yield "check", [":check", model, str(plan), str(small)]
    yield "check, layerwise", [":check", model, str(plan), str(small), "--layerwise"]
    pairs, fitted = root / "pairs.safetensors", root / "fitted"
    yield "calibrate for a refit", [
        "calibrate", str(small), "--original", model, *run, "-o", str(pairs)
    ]  # fmt: skip
    yield "refit", ["refit", str(small), "--statistics", str(pairs), "-o", str(fitted)]
    yield "analyze", [
        "analyze", model, "--text", text, "--tokens", "4096", "--length", "1024",
        "-o", str(root / "analysis.json"),
    ]  # fmt: skip
    measured = ["--baseline", model, "--tasks", "text,mqar", "--text", text, "--skip", str(TOKENS)]
    measured += ["--limit", "8"]
    for name, more in (("evaluate", []), ("evaluate, layerwise", ["--layerwise"])):
        out = root / f"scores{'-layerwise' if more else ''}.json"
        yield name, ["evaluate", str(fitted), *measured, *more, "-o", str(out)]
    sizes = [] if num_gpus else ["--batch-sizes", "1,4", "--lengths", "128"]  # minutes on a CPU
    yield "benchmark", [
        "benchmark", str(fitted), "--baseline", model, "--rounds", "3", *sizes,
        "-o", str(root / "timings.json"),
    ]  # fmt: skip
    train = ["--teacher", model, "--text", text, "--tokens", "8192", "--length", "256"]
    train += ["--batch-size", "4"]
    for name, more in (("recover", []), ("recover, layerwise", ["--layerwise"])):
        out = root / f"recovered{'-layerwise' if more else ''}"
        yield name, ["recover", str(fitted), *train, *more, "-o", str(out)]
    yield "report", [
        "report", str(fitted), str(root / "scores.json"), str(root / "timings.json"),
        str(root / "analysis.json"), "-o", str(root / "report"),
    ]  # fmt: skip
    yield "trim", [
        "trim", model, "--to", "50%x50%", "--text", text, "--tokens", "4096", "--limit", "4",
        "--tasks", "text,mqar", "-o", str(root / "trimmed"),
    ]  # fmt: skip
    if importlib.util.find_spec("vllm") is not None:
        yield "engine", [
            "verify", str(fitted), "--baseline", model, "--engine", "vllm", "--engine-python",
            sys.executable, "--text", text, "-o", str(root / "served.json"),
        ]  # fmt: skip


def build(directory: Path) -> None:
    """Write a random model, its tokenizer, and a text of random words."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = AutoConfig.for_model("qwen3_5_text", dtype="bfloat16", **SHAPE)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(directory / "model")
    words = {"<end>": 0} | {f"w{i}": i for i in range(1, SHAPE["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
    wrapped.save_pretrained(directory / "model")
    ids = torch.randint(1, SHAPE["vocab_size"], (WORDS // 100, 100)).tolist()
    lines = [json.dumps({"text": " ".join(f"w{i}" for i in row)}) for row in ids]
    (directory / "text.jsonl").write_text("\n".join(lines))


def devices() -> dict[str, Any]:
    import torch

    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": versions,
        "cuda": torch.version.cuda,
        "gpus": [
            {
                "name": torch.cuda.get_device_name(gpu),
                "memory": torch.cuda.get_device_properties(gpu).total_memory,
                "capability": list(torch.cuda.get_device_capability(gpu)),
            }
            for gpu in gpus
        ],
    }


def child(arguments: list[str]) -> None:
    """Run one step in this process; prints its time and peak memory as JSON."""
    import resource

    import torch

    start, result = time.perf_counter(), None
    if arguments[0] == ":compare":
        result = compare(*arguments[1:])
    elif arguments[0] == ":check":
        result = check(*arguments[1:])
    else:
        from statetrim.commands import main

        sys.argv = ["statetrim", *arguments]
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_available() else range(0)
    cost = {
        "seconds": round(time.perf_counter() - start, 2),
        "gpu_peak_bytes": [torch.cuda.max_memory_allocated(gpu) for gpu in gpus],
        "host_peak_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "result": result,
    }
    print("\n" + json.dumps(cost))


def compare(first: str, second: str) -> dict[str, float]:
    """The largest difference of two statistics, relative to the largest value of each sum."""
    from statetrim.artifacts.statistics import SUM_NAMES, Statistics

    first_statistics, second_statistics = Statistics.load(first), Statistics.load(second)
    worst = 0.0
    for layer, sums in first_statistics.layers.items():
        for name in SUM_NAMES:
            a, b = getattr(sums, name), getattr(second_statistics.layers[layer], name)
            if a is not None:
                worst = max(worst, float((a - b).abs().max() / a.abs().max()))
    return {"largest difference": worst}


def check(model: str, plan: str, small: str, *more: str) -> dict[str, Any]:
    from dataclasses import asdict

    from statetrim.artifacts.plan import Plan
    from statetrim.runtime.placement import Placement
    from statetrim.storage.checkpoint import open_checkpoint
    from statetrim.surgery.check import compare_cut

    placement = Placement(layerwise="--layerwise" in more)
    cut = compare_cut(
        open_checkpoint(model), Plan.load(plan), open_checkpoint(small), placement=placement
    )
    return asdict(cut)


def run(arguments: list[str], root: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", json.dumps(arguments)]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {LIMIT_SECONDS:.0f} s"}
    if process.returncode:
        error_text = (process.stderr or process.stdout).strip().replace(str(root), "OUT")
        if process.returncode < 0:  # usually out of memory
            error_text += f"\nkilled by {signal.Signals(-process.returncode).name}"
        return {
            "exit code": process.returncode,
            "error": error_text[-1500:] or "ended without output",
        }
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    return result


def timings(root: Path) -> list[dict[str, Any]]:
    """The records of `benchmark`, without the names of models."""
    path = root / "timings.json"
    if not path.exists():
        return []
    records = json.loads(path.read_text()).get("records", [])
    return [{k: v for k, v in record.items() if k != "model"} for record in records]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--text")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(json.loads(options.child))
        return
    if options.out is None:
        parser.error("name a directory for the results")
    root: Path = options.out
    root.mkdir(parents=True)
    if not options.model or not options.text:
        build(root)
    model, text = options.model or str(root / "model"), options.text or str(root / "text.jsonl")
    results: dict[str, Any] = {
        "machine": devices(),
        "model": options.model or "random",
        "steps": {},
    }
    for name, arguments in steps(root, model, text, len(results["machine"]["gpus"])):
        print(f"{name} ...", end=" ", flush=True)
        result = run(arguments, root)
        results["steps"][name] = result
        results["timings"] = timings(root)
        print(result.get("error", f"{result.get('seconds')} s").splitlines()[-1][:100])
        (root / "gpu-smoke.json").write_text(json.dumps(results, indent=1))
    failed = [name for name, result in results["steps"].items() if "error" in result]
    print(
        f"{root / 'gpu-smoke.json'}: {len(results['steps'])} steps, {len(failed)} failed {failed}"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
