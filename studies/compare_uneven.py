"""One width for all layers, or width where the memory lives? At equal bytes, on one checkpoint.

    python studies/compare_uneven.py MODEL --text train.jsonl --test wiki.valid.raw --work FOLDER

Each layer is cut alone first (`statetrim.sensitivity`); from that, widths by layer are allocated
for a share of the state's bytes: freely, among the widths that were measured, and as uneven squares
(a layer stays whole or becomes half as wide on both axes). Each is cut, refitted and measured
beside the balanced uniform cut of the same bytes, all on the same statistics, by text and recall
sequences that took no part: NLL and KL over windows of 256 tokens, MQAR; intervals are 95 %, paired
by window and by sequence. One line a cut is added to the results; lines that are there already are
not measured again. `plot_uneven.py` draws them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import Any

import torch

import statetrim as st
from compare_axes import recalled
from compare_shapes import ROWS, ShapesJudge
from statetrim.defaults import KEY_METHOD, VALUE_METHOD
from statetrim.selection.allocate import Allocation, Costs, cheapest_allocation, measured_costs

WIDTHS = (48, 32, 24, 16, 8)
SHARES = (1 / 2, 1 / 4, 1 / 3)
CALIBRATION: dict[str, Any] = {"tokens": 2**15, "length": 512}

Row = dict[str, Any]


class UnevenJudge(ShapesJudge):
    """The same judge, with recall by the number of pairs as well."""

    @torch.inference_mode()
    def samples(self, live: Any) -> dict[str, torch.Tensor]:
        each = {f"recall {n}": recalled(live, n, ROWS, seed=4321) for n in self.pairs}
        mean = torch.stack([*each.values()]).mean(0)
        return self.on_text(live) | each | {"recall": mean}


def greedy(costs: Costs, share: float, whole: int) -> Allocation:
    """All layers whole; then, step by step, the narrower shape that costs least for its bytes."""
    shapes = {layer: max(of, key=numel) for layer, of in costs.items()}
    while sum(map(numel, shapes.values())) > share * whole * len(costs) + 1e-9:
        _, layer, to = min(
            ((costs[layer][to] - costs[layer][now]) / (numel(now) - numel(to)), layer, to)
            for layer, now in shapes.items()
            for to in costs[layer]
            if numel(to) < numel(now)
        )
        shapes[layer] = to
    cost = sum(costs[layer][shape] for layer, shape in shapes.items())
    return Allocation(shapes, cost, sum(map(numel, shapes.values())) / (whole * len(costs)))


def numel(shape: tuple[int, int]) -> int:
    return shape[0] * shape[1]


def allocations(model: st.Checkpoint, found: st.Sensitivity) -> Iterator[Row]:
    """What is to be cut: kind, share, widths, and what greedy would have cost."""
    geometry = model.geometry
    keys, values = geometry.head_k_dim, geometry.head_v_dim
    free, squares = (measured_costs(found, squares=kind) for kind in (False, True))
    for share in SHARES:
        side = isqrt(int(share * keys * values))
        even = ",".join(f"{layer}={side}x{side}" for layer in geometry.layers)
        yield {"kind": "uniform", "share": share, "widths": even, "predicted": None}
        for kind, costs in (("free", free), ("squares", squares)):
            if kind == "squares" and share <= 1 / 4:
                continue  # that is the uniform square
            exact = cheapest_allocation(costs, share, keys * values)
            other = greedy(costs, share, keys * values)
            yield {
                "kind": kind,
                "share": share,
                "widths": str(exact),
                "predicted": exact.cost,
                "greedy": other.cost,
                "greedy_widths": str(other),
            }


def study(options: argparse.Namespace, seed: int, known: list[Row]) -> Iterator[Row]:
    model = st.open(options.model)
    name = model.path.resolve().name
    work = options.work / f"{name}-{seed}"
    work.mkdir(parents=True, exist_ok=True)
    skip = seed * 2**17  # another part of the text
    found = measured(model, options, skip, work)
    judge: UnevenJudge | None = None
    statistics: st.Statistics | None = None
    for case in allocations(model, found):
        row = {"model": name, "seed": seed} | case
        if any(
            all(line.get(k) == row[k] for k in ("model", "seed", "kind", "share")) for line in known
        ):
            continue
        judge = judge or UnevenJudge(model, options.test, options.windows, options.pairs)
        statistics = statistics or calibrated(model, options, skip, work)
        for left in ("cut", "refit"):  # by a run that was killed
            shutil.rmtree(work / left, ignore_errors=True)
        plan = st.select(model, widths=case["widths"], statistics=statistics, progress=False)
        small = st.prune(model, plan, work / "cut", uneven=True, progress=False)
        pairs = st.calibrate(small, options.text, original=model, skip=skip, **CALIBRATION)
        fitted = st.refit(small, pairs, out=work / "refit", progress=False)
        taken = small.geometry.state_numel / model.geometry.state_numel
        figures = judge.figures(st.load(fitted))
        yield row | {"taken": taken, "original": judge.figures(judge.original)} | figures


def calibrated(
    model: st.Checkpoint, options: argparse.Namespace, skip: int, work: Path
) -> st.Statistics:
    """Once for each seed."""
    path = work / "statistics.safetensors"
    if path.exists():
        return st.Statistics.load(path)
    methods = [KEY_METHOD, VALUE_METHOD]
    return st.calibrate(model, options.text, methods=methods, skip=skip, out=path, **CALIBRATION)


def measured(
    model: st.Checkpoint, options: argparse.Namespace, skip: int, work: Path
) -> st.Sensitivity:
    """Every layer cut alone; once for each seed."""
    path = work / "sensitivity.json"
    if path.exists():
        return st.Sensitivity.load(path)
    return st.sensitivity(
        model, options.text, widths=WIDTHS, windows=32, rows=16, skip=skip, out=path
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True, help="to calibrate and allocate on")
    parser.add_argument("--test", type=Path, required=True, help="plain text for NLL")
    parser.add_argument("--work", type=Path, required=True, help="for what is made on the way")
    parser.add_argument("--results", type=Path, default=Path("results/uneven.jsonl"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--windows", type=int, default=64, help="of the test text")
    parser.add_argument("--pairs", nargs="+", type=int, default=[16, 32, 63])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in options.seeds:
        known: list[Row] = []
        if options.results.exists():
            known = [json.loads(line) for line in options.results.read_text().splitlines()]
        for row in study(options, seed, known):
            print(row, flush=True)
            with options.results.open("a") as results:
                results.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
