"""Pruned heads against pruned channels at the same bytes: written, refitted and measured.

    python studies/recall/cut_heads.py MODEL --text train.jsonl --test wiki.valid.raw \
        --results results/recall/cut-heads-NAME.jsonl

`select`, `prune` and `refit` make the checkpoints. One JSON line per cut; cuts that the results
hold are not measured again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

import statetrim as st
from judge import Judge, Row, Rows, study_parser
from statetrim.cut.geometry import allowed_head_counts
from statetrim.runtime.loading import load_live


def variants(geometry: st.Geometry) -> list[tuple[Row, dict[str, Any]]]:
    """Fields of the result line and options of `select`, for half of the bytes, then a quarter.

    Heads are removed only where `head_counts` allows it.
    """
    heads, keys, values = geometry.num_v_heads, geometry.head_k_dim, geometry.head_v_dim
    cuts: list[tuple[Row, dict[str, Any]]] = []
    for divisor in (2, 4):
        if heads // divisor in allowed_head_counts(geometry):
            cuts += [
                (
                    {"part": f"1/{divisor}", "cut": f"{heads // divisor} heads", "method": method},
                    {"to": f"{heads // divisor}heads", "method": method},
                )
                for method in ("head_refit", "head_energy", "head_rank", "rand")
            ]
        widths = [(keys // divisor, values), (keys, values // divisor)]
        widths += [(keys // 2, values // 2)] if divisor == 4 else []
        cuts += [
            (
                {"part": f"1/{divisor}", "cut": f"{k}x{v}", "method": "defaults"},
                {"to": f"{k}x{v}"},
            )
            for k, v in widths
        ]
    return cuts


def main() -> None:
    sizes: Any = {"windows": 96, "rows": 96, "tokens": "32k"}
    parser = study_parser(__doc__, "model", "text", "test", "results", **sizes)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = st.open(options.model)
    results = Rows(options.results)
    base = {"model": options.model.name, "windows": options.windows, "rows": options.rows}
    base["tokens"] = options.tokens
    missing = [
        (base | row, selection)
        for row, selection in variants(model.geometry)
        if not results.has(base | row)
    ]
    judge = Judge(model, options.test, options.windows, options.rows)
    calibration_options = {"tokens": options.tokens, "length": 256, "progress": False}
    methods = ["product", "readout_greedy", "head_rank"]
    statistics = st.calibrate(model, options.text, methods=methods, **calibration_options)
    for row, selection in missing:
        with tempfile.TemporaryDirectory() as directory:
            plan = st.select(model, statistics=statistics, progress=False, **selection)
            cut = st.prune(model, plan, Path(directory) / "cut", progress=False)
            sums = statistics
            if "head" not in plan.axes:
                sums = st.calibrate(cut, options.text, original=model, **calibration_options)
            small = st.refit(cut, sums, out=Path(directory) / "small", progress=False)
            for refitted, checkpoint in ((False, cut), (True, small)):
                size = {"state_bytes": 4 * small.geometry.state_numel, "refitted": refitted}
                results.add(row | size | judge.figures(judge.samples(load_live(checkpoint))))


if __name__ == "__main__":
    main()
