"""Every command that writes files, on a tiny model; each run takes about a second."""

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

import statetrim as st
from helpers import tiny
from helpers.engine import InProcess
from helpers.faults import Command
from helpers.forker import exclude_from_collection
from helpers.quantized import FORMATS, quantize_checkpoint
from statetrim.runtime.loading import load_live

OUT = "out"
_TEXT = "--text text.jsonl"
_SIZES = "--tokens 512 --length 32 --batch-size 4"
_TRIMMED = f"{_TEXT} --tokens 1k --limit 2 --tasks mqar --no-control -o {OUT}"
_LINES = (
    f"prune model plan.json -o {OUT}",
    f"calibrate model {_TEXT} {_SIZES} --for drrqr -o {OUT}",
    f"refit small --statistics pairs.safetensors -o {OUT}",
    f"recover small --teacher model {_TEXT} {_SIZES} --save-every 2 -o {OUT}",
    f"evaluate small --baseline model --tasks mqar --limit 2 -o {OUT}",
    f"analyze model {_TEXT} --tokens 256 --length 64 --burn-in 8 -o {OUT}.json",
    f"report small scores.json --baseline model -o {OUT}",
    f"trim model --to 50%x100% {_TRIMMED}",
    f"trim model --to 8x8,6x8 {_TRIMMED}",
    f"select model --method l1 --to 8x100% -o {OUT}",
    f"benchmark small --baseline model --batch-sizes 1 --lengths 8 --rounds 1 -o {OUT}",
    f"snapshot model {_TEXT} --sequences 2 --length 8 --tolerances 0.1 -o {OUT}.json",
    "verify small --baseline model --engine mlx --engine-python python --count 2 --length 24 "
    f"--generate 2 {_TEXT} -o {OUT}",
)
COMMANDS: dict[str, list[str]] = {
    "comparison" if "8x8,6x8" in line else line.split()[0]: line.split() for line in _LINES
}


def save_prompt() -> None:
    """What a program with `st.save_prompt` does; it ends as a command does."""
    live = load_live(st.open("model"))
    with torch.inference_mode():
        _, cache = live.forward_with_cache(live.random_ids(1, 8))
    try:
        st.save_prompt(cache, OUT, model="model")
    except st.StatetrimError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


KILLED: dict[str, Command] = {
    **{name: COMMANDS[name] for name in tuple(COMMANDS)[:9]},
    "layerwise": [*COMMANDS["calibrate"], "--layerwise"],
    "uneven": ["prune", "model", "uneven.json", "--uneven", "-o", OUT],
    "quantised": ["prune", "quantized", "plan.json", "-o", OUT],
    "quantised-refit": ["refit", "quantized-small", "--statistics", "quantized-pairs", "-o", OUT],
    "save_prompt": save_prompt,
}


TIMED = ("benchmark", "snapshot")
"""Commands whose output has timings, so that it differs from run to run."""


def prepare(root: Path) -> Path:
    """Create in `root` everything that the commands read. The engine of `verify` is replaced by
    one in this process."""
    verification: Any = importlib.import_module("statetrim.verification.verify")
    verification.run_engine = InProcess()
    tiny.build("delta_net", root / "model")
    tiny.write_text(root / "text.jsonl", 6000)
    model, text = st.open(root / "model"), root / "text.jsonl"
    sizes: dict[str, Any] = {"tokens": 256, "length": 32, "batch_size": 4, "progress": False}
    sizes["recall"] = 0.0
    st.select(model, "l1,rand", "2heads:8x100%").save(root / "plan.json")
    widths = "0=12x8,1=8x4"
    st.select(model, "l1,rand", to=widths).save(root / "uneven.json")
    quantize_checkpoint(root / "model", root / "quantized", FORMATS["fine-grained fp8"])
    small = st.prune(model, root / "plan.json", root / "small", progress=False)
    st.calibrate(small, text, original=model, out=root / "pairs.safetensors", **sizes)
    small_quantized = st.prune(
        root / "quantized", root / "plan.json", root / "quantized-small", progress=False
    )
    st.calibrate(
        small_quantized, text, original=root / "quantized", out=root / "quantized-pairs", **sizes
    )
    st.evaluate(
        [small], baseline=model, tasks=["mqar"], limit=2, out=root / "scores.json", progress=False
    )
    st.report(small, [root / "scores.json"], out=root / "page")  # compiles its templates
    shutil.rmtree(root / "page")
    exclude_from_collection()
    return root


def clean(root: Path) -> None:
    """Remove the outputs and temporary files of a command."""
    for path in [p for p in root.iterdir() if p.name.startswith((OUT, "."))]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
