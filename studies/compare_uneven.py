"""One width for all layers, or widths by layer? Compared at equal bytes on one checkpoint.

    python studies/compare_uneven.py MODEL --text train.jsonl --test wiki.valid.raw --work FOLDER

Each layer is pruned alone first (`statetrim.sensitivity`). From that, widths by layer are allocated
for a share of the state's bytes: freely among the measured widths, and as squares (a layer keeps
all, or half of both axes). Each cut is refitted and compared with the uniform square of the same
bytes, with the same statistics, on other text and recall sequences: NLL and KL over windows of 256
tokens, MQAR; intervals are 95 %, paired by window and by sequence. A line per cut is added to the
results; lines that exist are not measured again. `plot_uneven.py` draws them. `--hops 2` measures
recall that needs two lookups, for a model of train_tiny.py that learned it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from math import isqrt
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import mqar
import statetrim as st
from arguments import study_parser
from compare_axes import recall_accuracies
from compare_shapes import ROWS, ShapesEvaluator
from statetrim.defaults import KEY_METHOD, VALUE_METHOD
from statetrim.selection.allocate import Allocation, Costs, cheapest_allocation, measured_costs

WIDTHS = (3 / 4, 1 / 2, 3 / 8, 1 / 4, 1 / 8)
SHARES = (1 / 2, 1 / 4, 1 / 3)
CALIBRATION: dict[str, Any] = {"tokens": 2**15, "length": 512}

Row = dict[str, Any]


class ByLayerEvaluator(ShapesEvaluator):
    """Measures NLL, KL, recall by the number of pairs, and the mean of recall."""

    def __init__(
        self, model: st.Checkpoint, test: Path, count: int, pairs: list[int], hops: int = 1
    ) -> None:
        self.hops = hops
        super().__init__(model, test, count, pairs)

    @torch.inference_mode()
    def samples(self, live: Any) -> dict[str, torch.Tensor]:
        by_pairs = {
            f"recall {n}": recall_accuracies(live, n, ROWS, 4321, self.hops) for n in self.pairs
        }
        mean = torch.stack([*by_pairs.values()]).mean(0)
        return self.on_text(live) | by_pairs | {"recall": mean}


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


def study(options: argparse.Namespace, seed: int, done: list[Row]) -> Iterator[Row]:
    model = st.open(options.model)
    name = model.path.resolve().name
    work = options.work / f"{name}-{seed}"
    work.mkdir(parents=True, exist_ok=True)
    skip = seed * 2**17  # another part of the text
    sensitivity = measure_sensitivity(model, options, skip, work)
    evaluator: ByLayerEvaluator | None = None
    statistics: st.Statistics | None = None
    for case in allocations(model, sensitivity):
        row = {"model": name, "seed": seed} | case
        if any(
            all(line.get(k) == row[k] for k in ("model", "seed", "kind", "share")) for line in done
        ):
            continue
        evaluator = evaluator or ByLayerEvaluator(
            model, options.test, options.windows, options.pairs, options.hops
        )
        statistics = statistics or collect_statistics(model, options, skip, work)
        for leftover in ("cut", "refit"):  # of a killed run
            shutil.rmtree(work / leftover, ignore_errors=True)
        plan = st.select(model, to=case["widths"], statistics=statistics, progress=False)
        small = st.prune(model, plan, work / "cut", uneven=True, progress=False)
        pairs = st.calibrate(small, options.text, original=model, skip=skip, **CALIBRATION)
        fitted = st.refit(small, pairs, out=work / "refit", progress=False)
        share_kept = small.geometry.state_numel / model.geometry.state_numel
        figures = evaluator.figures(st.load(fitted))
        yield (
            row | {"taken": share_kept, "original": evaluator.figures(evaluator.original)} | figures
        )


def collect_statistics(
    model: st.Checkpoint, options: argparse.Namespace, skip: int, work: Path
) -> st.Statistics:
    """Statistics for one seed, from `work` if they exist."""
    path = work / "statistics.safetensors"
    if path.exists():
        return st.Statistics.load(path)
    methods = [KEY_METHOD, VALUE_METHOD]
    return st.calibrate(model, options.text, methods=methods, skip=skip, out=path, **CALIBRATION)


def measure_sensitivity(
    model: st.Checkpoint, options: argparse.Namespace, skip: int, work: Path
) -> st.Sensitivity:
    """Sensitivity for one seed, from `work` if it exists."""
    path = work / "sensitivity.json"
    if path.exists():
        return st.Sensitivity.load(path)
    with ExitStack() as patches:
        if options.hops == 2:
            measuring = "statetrim.analysis.sensitivity"
            patches.enter_context(patch(f"{measuring}.associations", two_hops))
            patches.enter_context(patch(f"{measuring}.LOADS", options.pairs))
        return st.sensitivity(
            model, options.text, widths=WIDTHS, windows=32, rows=16, skip=skip, out=path
        )


def two_hops(vocabulary: int, pairs: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return mqar.two_hop_batch(vocabulary, pairs, rows, torch.Generator().manual_seed(0))


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", results="results/uneven.jsonl", seeds=[0, 1],
        windows=64, pairs=[16, 32, 63], hops=1,
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        done: list[Row] = []
        if options.results.exists():
            done = [json.loads(line) for line in options.results.read_text().splitlines()]
        for row in study(options, seed, done):
            print(row, flush=True)
            with options.results.open("a") as results:
                results.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
