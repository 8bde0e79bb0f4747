"""How many tokens DRRQR needs, and what its tolerance and its swaps do.

The paper takes 5k keys and queries of 128 sequences and one tolerance, and says neither how many
swaps Algorithms `alg:drrqr_compact` and `alg:drrqr` make nor what they change.

    python studies/paper/calibration.py MODEL --text train.jsonl --test wiki.valid.raw [--samples 3]

Rows of `tokens` say what a cut by that much text costs, on several samples of it; rows of
`tolerance` how many swaps are made, how far the volume of the kept channels grows, and how many
kept channels change against no swap at all. NLL is measured where channels differ.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import statetrim as st
from rotation import shared_fraction
from samples import ModelScorer, Row, Rows, parsed, parser, statistics

SIZES = (2**9, 2**11, 5120, 2**14, 2**16)
TOLERANCES = (1.0001, 1.01, 1.1, 1.5, 4.0)
NO_SWAPS = 1e6
KEEP = (0.5, 0.25)


def cases(options: argparse.Namespace) -> list[Row]:
    """Rows to measure; tolerances other than the default use the paper's number of tokens."""
    rows: list[Row] = [{"model": options.name, "method": "none", "keep": 1.0}]
    for sample in range(options.samples):
        for keep in options.keep:
            common = {"model": options.name, "method": "drrqr", "keep": keep, "sample": sample}
            rows += [common | {"tokens": size, "tolerance": 1.5} for size in options.sizes]
            rows += [common | {"tokens": 5120, "tolerance": t} for t in (*TOLERANCES, NO_SWAPS)]
    return rows


class Study:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.model = options, st.open(options.model)
        self.scorer = ModelScorer(self.model, options)
        self.sums: dict[tuple[int, int], st.Statistics] = {}
        self.scores_by_channels: dict[str, Row] = {}

    def measure(self, row: Row) -> Row:
        if row["method"] == "none":
            return self.scorer.score_checkpoint(self.model)
        key = row["tokens"], row["sample"]
        if key not in self.sums:
            options = argparse.Namespace(**vars(self.options) | {"tokens": row["tokens"]})
            options.calibration_length = min(options.calibration_length, row["tokens"])
            self.sums[key] = statistics(self.model, options, row["sample"], ["drrqr"])
        plan, without_swaps = (
            st.select(
                self.model,
                "drrqr",
                f"{row['keep']:.1%}x100%",
                statistics=self.sums[key],
                method_options={"tolerance": tolerance},
                progress=False,
            )
            for tolerance in (row["tolerance"], NO_SWAPS)
        )
        notes = [note for note in plan.notes.values() if "swaps" in note]
        swap_counts: Row = {
            "swaps": sum(sum(note["swaps"]) for note in notes),
            "most swaps": max(max(note["swaps"]) for note in notes),
            "heads": sum(len(note["swaps"]) for note in notes),
            "best gain left": max(max(note["gain"]) for note in notes),
            "channels changed": round(1 - shared_fraction(plan, without_swaps), 5),
        }
        channels = json.dumps([kept.tolist() for kept in plan.kept.values()])
        if channels not in self.scores_by_channels:
            with tempfile.TemporaryDirectory() as directory:
                small = st.prune(self.model, plan, Path(directory) / "small")
                self.scores_by_channels[channels] = self.scorer.score_checkpoint(small)
        return swap_counts | self.scores_by_channels[channels]


def main() -> None:
    arguments = parser(__doc__, "calibration.jsonl", "of the calibration text")
    arguments.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    arguments.add_argument("--keep", nargs="+", type=float, default=list(KEEP))
    options = parsed(arguments)
    Rows(options.results).measure_missing(cases(options), Study(options).measure)


if __name__ == "__main__":
    main()
