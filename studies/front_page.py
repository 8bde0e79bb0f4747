"""Fill the table of the README: what each lever gains, and what a small model loses by it.

    python studies/front_page.py page

Gains are computed for Qwen3.5-35B-A3B in vLLM, which has two value heads for each key head, as the
small hybrid on which `studies/levers.py` measured the losses.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import statetrim as st
from runner import Row, fill, read_rows, start, table
from statetrim.cut.geometry import Geometry
from statetrim.cut.request import parse_request
from statetrim.serving.capacity.arithmetic import Fit
from statetrim.serving.capacity.compare import capacity, settings_for
from statetrim.serving.engines import find_engine
from statetrim.serving.options import CacheOptions
from statetrim.serving.target import resolve_target

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tests" / "data" / "hub_configs" / "Qwen--Qwen3.5-35B-A3B_config.json"
MEASURED = "tiny-qwen3_5_hybrid"
NO_CUT = "no cut"


@dataclass(frozen=True)
class Lever:
    """What is served, what it takes, and the cut of the small hybrid that keeps the same parts."""

    name: str
    request: str  # as --to says it; empty: all is kept
    needs: str
    measured: str = NO_CUT
    dtype: str = "bfloat16"


def squares(geometry: Geometry) -> str:
    """A third of the layers whole, the others half as wide along both axes."""
    whole = list(geometry.layers)[: len(geometry.layers) // 3]
    shape = f"{geometry.head_k_dim}x{geometry.head_v_dim}"
    half = f"{geometry.head_k_dim // 2}x{geometry.head_v_dim // 2}"
    return "".join(f"{layer}={shape}," for layer in whole) + f"others={half}"


def measured(results: Path, **fields: Any) -> Row:
    """The row of the small hybrid and the first seed with these fields."""
    fields |= {"model": MEASURED, "seed": 0}
    return next(row for row in read_rows(results / "levers.jsonl") if fields.items() <= row.items())


def levers(geometry: Geometry, results: Path) -> list[Lever]:
    heads = geometry.num_v_heads
    return [
        Lever("as released", "", "", dtype="float32"),
        Lever("state in 16 bits", "", "flag"),
        Lever(
            f"16 bits, {heads // 2} of {heads} value heads",
            f"{heads // 2}heads",
            "cut, training",
            f"{heads // 2 * 4 // heads}heads",
        ),
        Lever("16 bits, 96x80 in every layer", "96x80", "cut, training", "48x40"),
        Lever(
            "16 bits, a third of layers 128x128, others 64x64",
            squares(geometry),
            "cut, plugin",
            measured(results, share=0.25, engine="vllm")["by_layer"],  # half in bfloat16
        ),
        Lever("16 bits, 64x64 in every layer", "64x64", "cut, training", "32x32"),
    ]


def geometry_of(model: st.Checkpoint, request: str) -> Geometry:
    return resolve_target(model, parse_request(request)).after if request else model.geometry


SETTINGS: dict[str, dict[str, Any]] = {
    "4K": {"context": 4096},
    "32K": {"context": 32768},
    "4K, fp8 KV cache": {"context": 4096, "kv_dtype": "fp8"},
}
"""Column of sequences -> how they are served."""


def fit(model: st.Checkpoint, lever: Lever, settings: dict[str, Any]) -> Fit:
    """What vLLM holds in 40 GiB."""
    engine = find_engine("vllm")
    cache = CacheOptions(memory_gib=40.0, **settings)
    after = geometry_of(model, lever.request)
    chosen = settings_for(model, cache.in_engine(engine), lever.dtype)
    return capacity(model, after, chosen, engine)


def loss_cells(lever: Lever, results: Path) -> list[str]:
    row = measured(results, cut=lever.measured, dtype=lever.dtype)
    return [f"{abs(row['perplexity'][0]):.1f} %", f"{abs(row['recall'][0]):.1f}"]


def levers_table(results: Path) -> str:
    model = st.open(CONFIG)
    released, *others = levers(model.geometry, results)
    baselines = {name: fit(model, released, x).sequences for name, x in SETTINGS.items()}
    prefix = fit(model, released, SETTINGS["4K"]).shortest_prefix
    counts = [f"{baseline:.1f}" for baseline in baselines.values()]
    lines = [[released.name, *counts, str(prefix), "", "", ""]]
    for lever in others:
        fits = {name: fit(model, lever, x) for name, x in SETTINGS.items()}
        counts = [f"{x.sequences / baselines[name]:.2f}x" for name, x in fits.items()]
        prefix = fits["4K"].shortest_prefix
        losses = loss_cells(lever, results)
        lines.append([lever.name, *counts, str(prefix), *losses, lever.needs])
    header = ["lever", *SETTINGS, "prefixes from", "perplexity", "recall", "needs"]
    return table(header, lines)


def page(results: Path) -> None:
    fill(results.parent / "README.md", {"levers": levers_table(results)})


if __name__ == "__main__":
    start(page)
