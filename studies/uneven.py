"""One width for all layers, or widths by layer? Compared at equal bytes on one checkpoint.

    python studies/uneven.py run MODEL --text train.jsonl --test wiki.valid.raw --work FOLDER
    python studies/uneven.py pages MODEL --text train.jsonl --test wiki.valid.raw --work FOLDER
    python studies/uneven.py page

Each layer is pruned alone first (`statetrim.sensitivity`). From that, widths by layer are allocated
for a share of the state's bytes: freely among the measured widths, and as squares (a layer keeps
all, or half of both axes). Each cut is refitted and compared with the uniform square of the same
bytes, with the same statistics, on other text and recall sequences: NLL and KL over windows of 256
tokens, MQAR; intervals are 95 %, paired by window and by sequence. `--hops 2` measures recall that
needs two lookups, for a model of train_tiny.py that learned it.

`pages` takes widths that need as much of vLLM's cache as a uniform half and a uniform quarter,
those that `trim --by-layer` would choose: layers take whole pages of the narrowest. Kernels are
taken to serve every shape. A wide layer has at most as many parts as heads, and small models have
few: `--heads 16` chooses as for a model with 16.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from math import isqrt
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib.pyplot as plt
import torch

import mqar
import statetrim as st
from evaluator import Evaluator
from runner import Row, Rows, fill, read_rows, start, study_parser, table, with_margin
from shapes import ROWS, SEED, shapes_text
from statetrim.defaults import KEY_METHOD, VALUE_METHOD
from statetrim.selection.allocate import (
    Allocation,
    Costs,
    allocate_in_pages,
    cheapest_allocation,
    measured_costs,
)
from statetrim.serving.capacity.compare import engine_paging
from statetrim.serving.options import ServingOptions

WIDTHS = (3 / 4, 1 / 2, 3 / 8, 1 / 4, 1 / 8)
PAGE_WIDTHS = (1 / 2, 1 / 4)
SHARES = (1 / 2, 1 / 4, 1 / 3)
CALIBRATION: dict[str, Any] = {"tokens": 2**15, "length": 512}
KINDS = {"uniform": "#8a8a8a", "squares": "#c2571a", "free": "#1f5fa8"}


def greedy(costs: Costs, share: float, head_numel: int) -> Allocation:
    """From unpruned layers, repeat the step to a narrower shape that costs least per element."""
    shapes = {layer: max(shapes_costs, key=numel) for layer, shapes_costs in costs.items()}
    while sum(map(numel, shapes.values())) > share * head_numel * len(costs) + 1e-9:
        steps: list[tuple[float, int, tuple[int, int]]] = []  # cost per element, layer, new shape
        for layer, current in shapes.items():
            for narrower, cost in costs[layer].items():
                removed = numel(current) - numel(narrower)
                if removed > 0:
                    steps.append(((cost - costs[layer][current]) / removed, layer, narrower))
        _, layer, narrower = min(steps)
        shapes[layer] = narrower
    cost = sum(costs[layer][shape] for layer, shape in shapes.items())
    return Allocation(shapes, cost, sum(map(numel, shapes.values())) / (head_numel * len(costs)))


def numel(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1]


def allocations(model: st.Checkpoint, sensitivity: st.Sensitivity) -> Iterator[Row]:
    """The cuts to make: kind, share, widths, predicted cost, and the greedy allocation's cost."""
    geometry = model.geometry
    keys, values = geometry.head_k_dim, geometry.head_v_dim
    free, pair = measured_costs(sensitivity), ((keys, values), (keys // 2, values // 2))
    squares = {layer: {shape: costs[shape] for shape in pair} for layer, costs in free.items()}
    for share in SHARES:
        side = isqrt(int(share * keys * values))
        uniform = ",".join(f"{layer}={side}x{side}" for layer in geometry.layers)
        yield {"kind": "uniform", "share": share, "widths": uniform, "predicted": None}
        for kind, costs in (("free", free), ("squares", squares)):
            if kind == "squares" and share <= 1 / 4:
                continue  # that is the uniform square
            exact = cheapest_allocation(costs, share, keys * values)
            greedy_allocation = greedy(costs, share, keys * values)
            yield {
                "kind": kind,
                "share": share,
                "widths": str(exact),
                "predicted": exact.cost,
                "greedy": greedy_allocation.cost,
                "greedy_widths": str(greedy_allocation),
            }


class Study:
    """One model with one seed: its cuts are made below `work`."""

    def __init__(self, options: argparse.Namespace, seed: int) -> None:
        self.options, self.seed = options, seed
        self.model = st.open(options.model)
        self.name = self.model.path.resolve().name
        self.skip = seed * 2**17  # another part of the text
        self.work = options.work / f"{self.name}-{seed}"
        self.work.mkdir(parents=True, exist_ok=True)
        self.evaluator = Evaluator(
            self.model, options.test, options.windows, options.pairs, ROWS, SEED, options.hops
        )

    def sensitivity(self, widths: tuple[float, ...], file: str) -> st.Sensitivity:
        """Sensitivity for one seed, from `work` if it exists."""
        path = self.work / file
        if path.exists():
            return st.Sensitivity.load(path)
        with ExitStack() as patches:
            if self.options.hops == 2:
                measuring = "statetrim.analysis.sensitivity"
                patches.enter_context(patch(f"{measuring}.associations", two_hops))
                patches.enter_context(patch(f"{measuring}.LOADS", self.options.pairs))
            return st.sensitivity(
                self.model, self.options.text, widths=widths, windows=32, rows=16, skip=self.skip,
                out=path,
            )  # fmt: skip

    def statistics(self) -> st.Statistics:
        """Statistics for one seed, from `work` if they exist."""
        path = self.work / "statistics.safetensors"
        if path.exists():
            return st.Statistics.load(path)
        methods, text = [KEY_METHOD, VALUE_METHOD], self.options.text
        return st.calibrate(
            self.model, text, methods=methods, skip=self.skip, out=path, **CALIBRATION
        )

    def figures(self, widths: str) -> Row:
        """Of the refitted cut, and of the original."""
        for leftover in ("cut", "refit"):  # of a killed run
            shutil.rmtree(self.work / leftover, ignore_errors=True)
        plan = st.select(self.model, to=widths, statistics=self.statistics(), progress=False)
        small = st.prune(self.model, plan, self.work / "cut", uneven=True, progress=False)
        pairs = st.calibrate(
            small, self.options.text, original=self.model, skip=self.skip, **CALIBRATION
        )
        fitted = st.refit(small, pairs, out=self.work / "refit", progress=False)
        taken = small.geometry.state_numel / self.model.geometry.state_numel
        original = self.evaluator.figures(self.evaluator.original)
        return {"taken": taken, "original": original, **self.evaluator.figures(st.load(fitted))}


def two_hops(vocabulary: int, pairs: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return mqar.two_hop_batch(vocabulary, pairs, rows, torch.Generator().manual_seed(0))


def study_options(results: str, **defaults: Any) -> argparse.Namespace:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", results=f"results/{results}", seeds=[0, 1],
        windows=64, pairs=[16, 32, 63], hops=1, **defaults,
    )  # fmt: skip
    torch.set_num_threads(1)
    return parser.parse_args()


def run() -> None:
    options = study_options("uneven.jsonl")
    results = Rows(options.results)
    for seed in options.seeds:
        study = Study(options, seed)
        for case in allocations(study.model, study.sensitivity(WIDTHS, "sensitivity.json")):
            identity = {"model": study.name, "seed": seed} | {k: case[k] for k in ("kind", "share")}
            if not results.has(identity):
                results.add(identity | case | study.figures(case["widths"]))


def run_pages() -> None:
    options = study_options("pages.jsonl", heads=0, shares=[1 / 2, 1 / 4])
    results = Rows(options.results)
    for seed in options.seeds:
        study = Study(options, seed)
        paging = engine_paging(study.model, ServingOptions())
        if options.heads:
            paging = replace(paging, num_k_heads=options.heads, num_v_heads=options.heads)
        sensitivity = study.sensitivity(PAGE_WIDTHS, "sensitivity-pages.json")
        for share in options.shares:
            row = {"model": study.name, "seed": seed, "kind": "pages", "share": share}
            row["heads"] = paging.num_v_heads
            if results.has(row):
                continue
            allocation = allocate_in_pages(sensitivity, share, paging, lambda _: True)
            row |= {"widths": str(allocation), "predicted": allocation.losses(sensitivity)}
            results.add(row | study.figures(str(allocation)) | {"taken": allocation.share})


def differs_by_layer(row: Row) -> bool:
    """Whether the layers have different shapes; if not, the cut equals the uniform one."""
    return len({entry.partition("=")[2] for entry in row["widths"].split(",")}) > 1


def by_seed(rows: list[Row]) -> list[list[Row]]:
    """Cuts to half and to a quarter of the bytes: the rows of all seeds, for each model, share and
    kind."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda r: (r["model"], -r["share"], r["seed"], -r["taken"])):
        if row["share"] in (1 / 2, 1 / 4):
            groups.setdefault((row["model"], row["share"], row["kind"]), []).append(row)
    return list(groups.values())


def by_layer_table(rows: list[Row]) -> str:
    """Half and a quarter of the bytes, below the original of each model."""
    lines: list[list[str]] = []
    for seeds in by_seed(rows):
        row = seeds[0]
        if not lines or lines[-1][0] != row["model"]:
            lines.append([row["model"], "100%", "original", "", "", recalled(row["original"])])
        rises = ", ".join(with_margin(seed["nll"][1:], 4) for seed in seeds)
        leading = [row["model"], f"{row['taken']:.0%}", row["kind"]]
        lines.append([*leading, shapes_text(row["widths"]), rises, recalled(row)])
    header = ["model", "state bytes", "kind", "shapes", "NLL change, both seeds"]
    return table([*header, "recall at 16 / 32 / 63 pairs"], lines)


def seeds_sentence(rows: list[Row]) -> str:
    """How much the recall of seeds differs."""
    names = [name for name in rows[0] if name.startswith("recall ")]
    largest = max(
        abs(first[name][0] - second[name][0]) for first, second in by_seed(rows) for name in names
    )
    return f"All but NLL is of seed 0; recall of seed 1 differs by at most {largest:.3f}."


def recalled(row: Row) -> str:
    return "/".join(f"{row[name][0]:.3f}" for name in row if name.startswith("recall "))


def allocation_sentence(rows: list[Row]) -> str:
    """A sentence on how much more greedy allocations cost than exact ones, as predicted."""
    both = [(row["predicted"], row["greedy"]) for row in rows if row.get("greedy") is not None]
    same = sum(greedy <= exact + 1e-9 for exact, greedy in both)
    worst = max(greedy - exact for exact, greedy in both)
    return (
        f"If costs add up, the allocation is optimal (a knapsack problem, solved in milliseconds). "
        f"A greedy allocation has the same cost in {same} of {len(both)} cases"
        + (f" and costs at most {worst:.4f} more." if same < len(both) else ".")
    )


def capacity_table(capacity: Row) -> str:
    """Sequences of 1K tokens by model and state; copies of a model in another format are left
    out, and what no text speaks of."""
    columns = [(dtype, drafts) for dtype in ("float32", "bfloat16") for drafts in (0, 3)]
    lines = []
    for model, cases in capacity["models"].items():
        if not model.startswith("Qwen"):
            continue
        counts: dict[str, dict[tuple[str, int], float]] = defaultdict(dict)
        for case in cases:
            settings = case["state_dtype"], case["speculative"]
            counts[case["state"]][settings] = case["sequences"]["1024"]
        for state, by_settings in counts.items():
            if state not in ("original", "1 whole", "4 whole", "uniform"):
                continue
            shown = [f"{by_settings[column]:.0f}" for column in columns]
            lines.append([model.replace("--", "/"), state, *shown])
    names = [f"{dtype}, {drafts} drafts" for dtype, drafts in columns]
    return table(["model", "layers", *names], lines)


def draw(rows: list[Row], path: Path) -> None:
    models = sorted({row["model"] for row in rows})
    figure, axes = plt.subplots(
        2, len(models), figsize=(4 * len(models), 6), sharex=True, squeeze=False
    )
    for column, model in enumerate(models):
        for kind, colour in KINDS.items():
            cuts = [row for row in rows if (row["model"], row["kind"]) == (model, kind)]
            for axis, measure, scale in zip(
                axes[:, column], ("nll", "recall"), (1, -100), strict=True
            ):
                x = [100 * row["taken"] for row in cuts]
                y = [scale * row[measure][1] for row in cuts]
                half = [abs(scale) * (row[measure][3] - row[measure][2]) / 2 for row in cuts]
                axis.errorbar(x, y, half, fmt="o", color=colour, label=kind, capsize=3, alpha=0.8)
        axes[0, column].set_title(model, fontsize=10)
        axes[1, column].set_xlabel("% of the state's bytes")
    axes[0, 0].set_ylabel("increase of NLL, nats")
    axes[1, 0].set_ylabel("recall lost, points")
    axes[0, 0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def pages_table(pages: list[Row], uniform: list[Row]) -> str:
    """One shape for all layers of each model and share, and then the cuts by layer (seed 0)."""
    by_case: dict[tuple[Any, ...], list[Row]] = {}
    for row in (*uniform, *pages):
        by_case.setdefault((row["model"], row["share"], row["seed"]), []).append(row)
    lines = []
    for cuts in by_case.values():
        if cuts[0]["seed"] != 0 or all(cut["kind"] == "uniform" for cut in cuts):
            continue  # the other seed agrees; or nothing to compare it with
        for cut in cuts:
            if cut["model"] == "tiny-delta_net" and cut.get("heads") == 16:
                continue  # the widths of four heads
            nll, recall = with_margin(cut["nll"][1:], 4), with_margin(cut["recall"][1:], 1, 100)
            share, heads = f"{cut['share']:.2f}", str(cut.get("heads", ""))
            leading = [cut["model"], share, heads]
            lines.append([*leading, widths_text(cut), nll, recall])
    return table(["model", "share", "heads", "widths", "nats", "points of recall"], lines)


def two_hops_table(rows: list[Row]) -> str:
    """Each share of the bytes with one shape for all layers, and with widths by layer."""
    lines = []
    for row in sorted(rows, key=lambda row: (-row["share"], row["seed"])):
        if row["kind"] != "squares":
            lost = with_margin(row["recall"][1:], 1, 100)
            lines.append([f"{row['share']:.2f}", str(row["seed"]), widths_text(row), lost])
    return table(["share", "seed", "widths", "points of recall"], lines)


def widths_text(cut: Row) -> str:
    """The shape of all layers, or the widths by layer."""
    shapes = {width.partition("=")[2] for width in cut["widths"].split(",")}
    return shapes.pop() if len(shapes) == 1 else str(cut["widths"]).replace(",", " ")


def page(results: Path) -> None:
    uneven = read_rows(results / "uneven.jsonl")
    rows = [row for row in uneven if row["kind"] != "squares" or differs_by_layer(row)]
    uniform = [row for row in uneven if row["kind"] == "uniform"]
    capacity = json.loads((results / "uneven-capacity.json").read_text())
    contents = {
        "uneven": by_layer_table(rows),
        "seeds": seeds_sentence(rows),
        "allocation": allocation_sentence(rows),
        "capacity": capacity_table(capacity),
        "pages": pages_table(read_rows(results / "pages.jsonl"), uniform),
        "two-hops": two_hops_table(read_rows(results / "two-hops.jsonl")),
    }
    fill(results / "uneven.md", contents)
    draw(rows, results / "uneven.png")


if __name__ == "__main__":
    start(page, run=run, pages=run_pages)
