"""Widths by layer that take as much of vLLM's cache as a uniform half and a uniform quarter.

    python studies/compare_pages.py MODEL --text train.jsonl --test wiki.valid.raw --work FOLDER

The widths are those that `trim --by-layer` would choose: every layer is cut alone to half and a
quarter of each axis, and layers take whole pages of the narrowest. Kernels are taken to serve every
shape. A wide layer has at most as many parts as heads, and small models have few: `--heads 16`
chooses as for a model with 16. Each cut is refitted and measured as in compare_uneven.py, whose
uniform cuts are the comparison. A line per cut is added to the results; lines that exist are not
measured again.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import torch

import statetrim as st
from arguments import study_parser
from compare_uneven import CALIBRATION, ByLayerEvaluator, collect_statistics
from statetrim.selection.allocate import allocate_in_pages
from statetrim.serving.capacity.compare import vllm_paging

WIDTHS = (1 / 2, 1 / 4)


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", results="results/pages.jsonl",
        seeds=[0, 1], windows=64, pairs=[16, 32, 63], heads=0, shares=[1 / 2, 1 / 4],
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = st.open(options.model)
    name = model.path.resolve().name
    paging = vllm_paging(model)
    if options.heads:
        paging = replace(paging, num_k_heads=options.heads, num_v_heads=options.heads)
    evaluator = ByLayerEvaluator(model, options.test, options.windows, options.pairs)
    for seed in options.seeds:
        skip = seed * 2**17  # another part of the text
        work = options.work / f"{name}-{seed}"
        work.mkdir(parents=True, exist_ok=True)
        path = work / "sensitivity-pages.json"
        sensitivity = (
            st.Sensitivity.load(path)
            if path.exists()
            else st.sensitivity(
                model, options.text, widths=WIDTHS, windows=32, rows=16, skip=skip, out=path
            )
        )
        for share in options.shares:
            row = {"model": name, "seed": seed, "kind": "pages", "share": share}
            row["heads"] = paging.num_v_heads
            lines = options.results.read_text().splitlines() if options.results.exists() else []
            if any(row.items() <= json.loads(line).items() for line in lines):
                continue
            allocation = allocate_in_pages(sensitivity, share, paging, lambda _: True)
            statistics = collect_statistics(model, options, skip, work)
            for leftover in ("cut", "refit"):  # of a killed run
                shutil.rmtree(work / leftover, ignore_errors=True)
            plan = st.select(model, to=str(allocation), statistics=statistics, progress=False)
            small = st.prune(model, plan, work / "cut", uneven=True, progress=False)
            pairs = st.calibrate(small, options.text, original=model, skip=skip, **CALIBRATION)
            fitted = st.refit(small, pairs, out=work / "refit", progress=False)
            row |= {
                "widths": str(allocation),
                "predicted": allocation.losses(sensitivity),
                "taken": allocation.share,
                "original": evaluator.figures(evaluator.original),
                **evaluator.figures(st.load(fitted)),
            }
            print(row, flush=True)
            with options.results.open("a") as results:
                results.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
