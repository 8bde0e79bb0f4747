"""Effective rank and spectra of the state: of the original, its cuts, and recovered cuts.

Figures `fig:histograms-main`, `fig:histogram`, `fig:histogram_pre_vs_post`, `fig:rank-util-curve`,
the condition number of the keys in Proposition `proposition:sandwich`, and the similarity of
filters shown in figures `fig:filters_dn` and `fig:filters_dn2`.

    python studies/paper/spectra.py MODEL --also drrqr=WORK/CUT recovered=WORK/RECOVERED \\
        --text valid.jsonl [--tokens 8192]

`quality.py` makes the checkpoints. A row holds every head's effective rank, mean spectrum and
condition numbers, the curve over tokens, and the histogram of the head that is fullest in MODEL.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import statetrim as st
from samples import Row, Rows, quiet
from statetrim.reporting.pictures import fullest_head


def to_list(values: Tensor | None, digits: int = 4) -> Any:
    if values is None:
        return None
    if values.dim() > 1:
        return [to_list(row, digits) for row in values]
    return [round(float(value), digits) for value in values]


def analysis_row(analysis: st.Analysis, layer: int, head: int) -> Row:
    layers = analysis.layers.values()
    fullest = analysis.layers[layer]
    return {
        "widest": analysis.max_rank,
        "head": [layer, head],
        "effective rank": to_list(analysis.mean_utilization.flatten() * analysis.max_rank),
        "key condition": to_list(
            torch.cat([layer_analysis.key_condition for layer_analysis in layers]), 2
        ),
        "query condition": to_list(
            torch.cat([layer_analysis.query_condition for layer_analysis in layers]), 2
        ),
        "key similarity": [to_list(layer_analysis.key_similarity) for layer_analysis in layers],
        "query similarity": [to_list(layer_analysis.query_similarity) for layer_analysis in layers],
        "positions": analysis.positions.tolist(),
        "curve": to_list(analysis.utilization_by_position),
        "spectra": [to_list(row) for layer_analysis in layers for row in layer_analysis.spectrum],
        "histogram": fullest.histogram[head].tolist(),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    arguments.add_argument("model", help="a directory or a hub id")
    arguments.add_argument("--also", nargs="*", default=[], metavar="NAME=CHECKPOINT")
    arguments.add_argument("--text", required=True, help="other text than calibration's")
    arguments.add_argument("--skip", type=int, default=0, help="tokens that calibration has read")
    arguments.add_argument("--tokens", type=int, default=4 * 2048)
    arguments.add_argument("--length", type=int, default=2048)
    arguments.add_argument("--every", type=int, default=16, help="tokens between two looks")
    arguments.add_argument("--results", type=Path, default=Path("results/paper/spectra.jsonl"))
    options = arguments.parse_args()
    quiet()
    paths = {"original": options.model}
    for argument in options.also:
        name, _, path = argument.partition("=")
        paths[name] = path
    rows, model_name = Rows(options.results), Path(options.model).resolve().name
    head: list[int] | None = None
    for row in rows.rows:
        if row["model"] == model_name and row["name"] == "original":
            head = row["head"]
    for row in rows.missing([{"model": model_name, "name": name} for name in paths]):
        analysis = st.analyze(
            paths[row["name"]],
            options.text,
            tokens=options.tokens,
            length=options.length,
            every=options.every,
            skip=options.skip,
            progress=False,
        )
        if head is None:  # the original comes first
            head = list(fullest_head(analysis))
        rows.add(row | analysis_row(analysis, *head))


if __name__ == "__main__":
    main()
