"""Verify cuts with widths by layer in MLX-LM and vLLM, which serve them with our plugins.

    python tools/engines/check_uneven.py ENGINES MODELS --text TEXT --work FOLDER

In each model `NAME-128` of MODELS (made by tools/engines/make_models.py) the first linear layer
keeps 128 x 128 and the others are pruned to 64 x 64 and refitted. `statetrim verify` compares
original, uniform 64 x 64 cut and this cut in both engines. `plugins/vllm` must be installed in
`ENGINES/vllm`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from check_engines import report_lines

import statetrim as st

NAMES = ("qwen3_next", "qwen3_5_text")
PLUGIN = Path(__file__).parents[2] / "plugins" / "mlx" / "statetrim_mlx.py"
OPTIONS: dict[str, dict[str, Any]] = {
    "mlx": {"model_config": {"model_file": PLUGIN.name}, "trust_remote_code": True},
    "vllm": {"kv_cache_memory_bytes": 2**28},
}


def make_uneven(model: st.Checkpoint, text: Path, out: Path) -> st.Checkpoint:
    if out.exists():
        return st.open(out)
    first = model.geometry.layers[0]
    sums = st.calibrate(model, text, tokens=2**14, methods=["product", "readout_greedy"])
    plan = st.select(model, to=f"{first}=128x128,others=64x64", statistics=sums)
    small = st.prune(model, plan, out.with_name(f"{out.name}-cut"), uneven=True)
    return st.refit(small, st.calibrate(small, text, original=model, tokens=2**15), out=out)


def with_model_file(model: st.Checkpoint, folder: Path) -> st.Checkpoint:
    """Copy the checkpoint together with `plugins/mlx`, with which MLX-LM builds it."""
    copy = folder / model.path.name
    if not copy.exists():
        shutil.copytree(model.path, copy)
        shutil.copy(PLUGIN, copy)
    return st.open(copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("engines", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--names", nargs="+", choices=NAMES, default=NAMES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        original = st.open(options.models / f"{name}-128")
        uniform = st.open(options.models / f"{name}-64x64-refitted")
        small = make_uneven(original, options.text, options.work / f"{name}-uneven")
        for engine in OPTIONS:
            models = [original, uniform, small]
            if engine == "mlx":
                models = [with_model_file(model, options.work / "mlx") for model in models]
            verification = st.verify(
                models[1:],
                baseline=models[0],
                engine=engine,
                engine_python=options.engines / engine / "bin" / "python",
                text=options.text,
                engine_options=OPTIONS[engine],
            )
            print(*report_lines(verification), sep="\n", flush=True)


if __name__ == "__main__":
    main()
