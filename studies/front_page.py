"""Fill the table of the README: what each lever gains, and what a cut in the same proportion loses.

    python studies/front_page.py page

Gains are computed for Qwen3.5-27B in vLLM. Losses were measured on a small model of that layout by
the studies whose rows are read here, recall as the mean of 32 and 63 pairs.
"""

from dataclasses import dataclass
from math import exp
from pathlib import Path
from statistics import fmean
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
CONFIG = ROOT / "tests" / "data" / "hub_configs" / "Qwen--Qwen3.5-27B_config.json"
MEASURED = "tiny-qwen3_5_hybrid"
PAIRS = ("recall 32", "recall 63")


@dataclass(frozen=True)
class Loss:
    nats: float
    recall: float  # a change in points
    share: float = 1.0  # of the state's numbers that the measured cut keeps

    def cells(self) -> list[str]:
        return [f"{100 * (exp(self.nats) - 1):.1f} %", f"{abs(self.recall):.1f}"]


@dataclass(frozen=True)
class Lever:
    """What is served: what is kept (all if empty), the dtype of the state, and what it takes."""

    name: str
    request: str
    dtype: str
    needs: str
    loss: Loss | None  # None: not measured
    kv_dtype: str = "auto"


def measured(path: Path, **fields: Any) -> Row:
    """The row of the small hybrid with these fields."""
    fields |= {"model": MEASURED}
    return next(row for row in read_rows(path) if fields.items() <= row.items())


def loss_of_dtype(results: Path) -> Loss:
    row = measured(results / "precision.jsonl", part="full", dtype="bfloat16", stochastic=False)
    return Loss(row["nll"][1], fmean(row[pairs][1] for pairs in PAIRS))


def loss_of_heads(results: Path) -> Loss:
    path = results / "recall" / f"cut-heads-{MEASURED}.jsonl"
    row = measured(path, part="1/2", method="head_refit", refitted=True)
    middles = [fmean(row[pairs][1:]) for pairs in PAIRS]  # of the two ends of an interval
    return Loss(row["increase"][0], 100 * fmean(middles), 0.5)


def loss_of_shapes(results: Path, kind: str, share: float) -> Loss:
    row = measured(results / "uneven.jsonl", kind=kind, share=share, seed=0)
    return Loss(row["nll"][1], 100 * fmean(row[pairs][1] for pairs in PAIRS), row["taken"])


def squares(geometry: Geometry) -> str:
    """A third of the layers whole, as in the half by layer that was measured."""
    whole = list(geometry.layers)[: len(geometry.layers) // 3]
    return "".join(f"{layer}=128x128," for layer in whole) + "others=64x64"


def levers(geometry: Geometry, results: Path) -> list[Lever]:
    by_layer = loss_of_shapes(results, "squares", 0.5)
    one_shape = loss_of_shapes(results, "uniform", 0.25)
    half, flag = geometry.num_v_heads // 2, "bfloat16"
    return [
        Lever("as released", "", "float32", "", None),
        Lever("state in 16 bits", "", flag, "flag", loss_of_dtype(results)),
        Lever("16 bits, fp8 KV cache", "", flag, "flags", None, "fp8"),
        Lever(
            f"16 bits, {half} of {2 * half} value heads",
            f"{half}heads",
            flag,
            "cut",
            loss_of_heads(results),
        ),
        Lever(
            "16 bits, a third of layers 128x128, others 64x64",
            squares(geometry),
            flag,
            "cut, plugin",
            by_layer,
        ),
        Lever("16 bits, 64x64 in every layer", "64x64", flag, "cut, training", one_shape),
    ]


def geometry_of(model: st.Checkpoint, lever: Lever) -> Geometry:
    if not lever.request:
        return model.geometry
    return resolve_target(model, parse_request(lever.request)).after


SETTINGS: dict[str, dict[str, Any]] = {
    "4K": {"context": 4096},
    "32K": {"context": 32768},
    "4K, no prefix cache": {"context": 4096, "prefix_caching": False},
}
"""Column of sequences -> how they are served."""


def fit(model: st.Checkpoint, lever: Lever, settings: dict[str, Any]) -> Fit:
    """What vLLM holds in 40 GiB."""
    engine = find_engine("vllm")
    cache = CacheOptions(memory_gib=40.0, kv_dtype=lever.kv_dtype, **settings)
    after = geometry_of(model, lever)
    chosen = settings_for(model, cache.in_engine(engine), lever.dtype)
    return capacity(model, after, chosen, engine)


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
        loss = lever.loss.cells() if lever.loss else ["not measured", ""]
        prefix = fits["4K"].shortest_prefix
        lines.append([lever.name, *counts, str(prefix), *loss, lever.needs])
    header = ["lever", *SETTINGS, "prefixes from", "perplexity", "recall", "needs"]
    return table(header, lines)


def page(results: Path) -> None:
    fill(results.parent / "README.md", {"levers": levers_table(results)})


if __name__ == "__main__":
    start(page)
