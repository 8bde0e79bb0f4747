"""Cuts whose layers take whole pages of vLLM's cache: one layer whole, the others narrow.

    python studies/compare_pages.py MODEL --text train.jsonl --test wiki.valid.raw --work FOLDER \
        --widths 0=64x64,others=32x32 0=64x64,others=16x16

Each cut is refitted and measured as in compare_uneven.py. A line per cut is added to the results;
lines that exist are not measured again.
"""

from __future__ import annotations

import json
import shutil

import torch

import statetrim as st
from arguments import study_parser
from compare_uneven import CALIBRATION, ByLayerEvaluator, collect_statistics


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", results="results/uneven-pages.jsonl",
        seeds=[0, 1], windows=64, pairs=[16, 32, 63], widths=["0=64x64,others=32x32"],
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = st.open(options.model)
    name = model.path.resolve().name
    evaluator = ByLayerEvaluator(model, options.test, options.windows, options.pairs)
    for seed in options.seeds:
        skip = seed * 2**17  # another part of the text
        work = options.work / f"{name}-{seed}"
        work.mkdir(parents=True, exist_ok=True)
        for widths in options.widths:
            row = {"model": name, "seed": seed, "widths": widths}
            lines = options.results.read_text().splitlines() if options.results.exists() else []
            if any(row.items() <= json.loads(line).items() for line in lines):
                continue
            statistics = collect_statistics(model, options, skip, work)
            for leftover in ("cut", "refit"):  # of a killed run
                shutil.rmtree(work / leftover, ignore_errors=True)
            plan = st.select(model, to=widths, statistics=statistics, progress=False)
            small = st.prune(model, plan, work / "cut", uneven=True, progress=False)
            pairs = st.calibrate(small, options.text, original=model, skip=skip, **CALIBRATION)
            fitted = st.refit(small, pairs, out=work / "refit", progress=False)
            share = small.geometry.state_numel / model.geometry.state_numel
            row |= {"taken": share, **evaluator.figures(st.load(fitted))}
            print(row, flush=True)
            with options.results.open("a") as results:
                results.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
