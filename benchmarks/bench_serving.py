"""Throughput of cuts relative to the original, and the ideal ratio, on this machine.

    just bench-serving DIRECTORY

Two random models with 8 heads as wide as in the paper's table (values 128, keys 128, 64 and 32):
Qwen3.5's Gated DeltaNet in transformers and fla's DeltaNet in statetrim.portable. DIRECTORY gets
the models, their cuts and the timings; a second run only times. The ideal of decoding is the ratio
of bytes a mixer must move (its weights once, its state twice), that of prefill the ratio of
operations in its matrix products. Last it profiles portable. The recipe keeps glibc from mapping
large tensors again for every token, which would slow down only the original.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.modules["fla"] = sys.modules["causal_conv1d"] = None  # type: ignore[assignment]

import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

import statetrim as st  # noqa: E402
from statetrim import portable  # noqa: E402
from statetrim.benchmarking import benchmark as benchmarking  # noqa: E402
from statetrim.runtime.loading import load_live  # noqa: E402

HEADS, WIDTH, HIDDEN, VOCABULARY = 8, 128, 256, 256
COMMON = {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": HIDDEN}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": COMMON
    | {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
    | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    | {"linear_num_key_heads": HEADS, "linear_num_value_heads": HEADS}
    | {"linear_key_head_dim": WIDTH, "linear_value_head_dim": WIDTH},
    "delta_net": COMMON
    | {"num_hidden_layers": 2, "num_heads": HEADS}
    | {"expand_k": HEADS * WIDTH / HIDDEN, "expand_v": HEADS * WIDTH / HIDDEN},
}


def build(model_type: str, folder: Path) -> list[Path]:
    """The original and its cuts to a half and a quarter of the keys."""
    original = folder / f"{model_type}-{WIDTH}"
    if not original.exists():
        torch.manual_seed(0)
        config = AutoConfig.for_model(model_type, **CONFIGS[model_type])
        AutoModelForCausalLM.from_config(config).save_pretrained(original)
    paths = [original]
    for keep in (WIDTH // 2, WIDTH // 4):
        cut = folder / f"{model_type}-{keep}"
        if not cut.exists():
            model = st.open(original)
            st.prune(model, st.select(model, "l1", to=f"{keep}x100%"), cut)
        paths.append(cut)
    return paths


def mixer_bytes(path: Path, batch: int) -> int:
    """What one layer moves for a token of every sequence: weights read, state read and written."""
    model = st.open(path)
    layer = model.geometry.layers[-1]
    weights = sum(
        tensor.nbytes
        for name, (_, tensor) in model.tensors.items()
        if f".layers.{layer}." in name and (".linear_attn." in name or ".attn." in name)
    )
    return weights + 2 * 4 * batch * model.geometry.state_numel // len(model.geometry.layers)


WORK = {
    "aten::bmm": "the state",
    "aten::baddbmm": "the state",
    "aten::baddbmm_": "the state",
    "aten::mm": "projections",
    "aten::addmm": "projections",
}


def profile(paths: list[Path], batch: int, length: int, tokens: int = 96) -> None:
    """Milliseconds of one decoded token in one mixer, by kind of operation (torch's profiler)."""
    rows: list[dict[str, float]] = []
    with torch.inference_mode():
        for path in paths:
            live = load_live(path)
            work = benchmarking._mixer_decode_work(live, live.random_ids(batch, length))
            for _ in range(32):
                work()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
                for _ in range(tokens):
                    work()
            spent: dict[str, float] = {}
            for event in trace.key_averages():
                kind = WORK.get(event.key, "everything else")
                spent[kind] = spent.get(kind, 0.0) + event.self_cpu_time_total / tokens / 1e3
            rows.append(spent | {"all": sum(spent.values())})
    print(f"\n| {paths[0].name}, batch {batch} | " + " | ".join(p.name for p in paths) + " |")
    print("|---" * (len(paths) + 1) + "|")
    for kind in ("the state", "projections", "everything else", "all"):
        print(f"| {kind} | " + " | ".join(f"{spent[kind]:.2f} ms" for spent in rows) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=25)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    portable.register()
    print(
        "| model | keys | batch | mixer decode | ideal | decode | mixer prefill | ideal | prefill |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for model_type in CONFIGS:
        first, *cuts = build(model_type, arguments.folder)
        timings = st.benchmark(
            cuts,
            baseline=first,
            batches=arguments.batches,
            lengths=[arguments.length],
            rounds=arguments.rounds,
            out=arguments.folder / f"{model_type}-{len(arguments.batches)}.json",
        )
        for cut in cuts:
            work = [timings.first(p.name, "mixer prefill work").value for p in (first, cut)]
            for batch in arguments.batches:
                cells = [model_type, cut.name.rpartition("-")[2], str(batch)]
                for metric in ("mixer decode", "decode", "mixer prefill", "prefill"):
                    timing = timings.first(cut.name, metric, batch, arguments.length)
                    assert timing.ratio is not None and timing.ratio_spread is not None
                    low, high = timing.ratio_spread
                    cells.append(f"{timing.ratio:.2f}x ({low:.2f}-{high:.2f})")
                    if metric == "mixer decode":
                        ideal = mixer_bytes(first, batch) / mixer_bytes(cut, batch)
                        cells.append(f"{ideal:.2f}x")
                    if metric == "mixer prefill":
                        cells.append(f"{work[0] / work[1]:.2f}x")
                print("| " + " | ".join(cells) + " |", flush=True)
    profile(build("delta_net", arguments.folder), arguments.batches[-1], arguments.length)


if __name__ == "__main__":
    main()
