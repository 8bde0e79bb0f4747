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
    loss: Loss | None


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
        Lever("state in 16 bits", "", flag, "a flag", loss_of_dtype(results)),
        Lever("and half of the value heads", f"{half}heads", flag, "a cut", loss_of_heads(results)),
        Lever(
            "and a third of the layers whole, others 64x64",
            squares(geometry),
            flag,
            "a cut, a plugin",
            by_layer,
        ),
        Lever("and 64x64 in every layer", "64x64", flag, "a cut, then training", one_shape),
    ]


def geometry_of(model: st.Checkpoint, lever: Lever) -> Geometry:
    if not lever.request:
        return model.geometry
    return resolve_target(model, parse_request(lever.request)).after


def fit(model: st.Checkpoint, lever: Lever, kv_dtype: str) -> Fit:
    """What vLLM holds in 40 GiB."""
    engine = find_engine("vllm")
    serving = CacheOptions(memory_gib=40.0, kv_dtype=kv_dtype).in_engine(engine)
    after = geometry_of(model, lever)
    return capacity(model, after, settings_for(model, serving, lever.dtype), engine)


def levers_table(results: Path) -> str:
    model = st.open(CONFIG)
    released, *others = levers(model.geometry, results)
    baseline = fit(model, released, "auto").sequences
    lines = []
    for lever in (released, *others):
        auto, fp8 = fit(model, lever, "auto"), fit(model, lever, "fp8")
        counts = [f"{x.sequences:.1f} ({x.sequences / baseline:.2f}x)" for x in (auto, fp8)]
        loss = lever.loss.cells() if lever.loss else ["", ""]
        lines.append([lever.name, *counts, str(auto.shortest_prefix), *loss, lever.needs])
    header = ["lever", "sequences", "and fp8 KV", "prefixes from", "perplexity", "recall", "needs"]
    return table(header, lines)


def page(results: Path) -> None:
    fill(results.parent / "README.md", {"levers": levers_table(results)})


if __name__ == "__main__":
    start(page)
