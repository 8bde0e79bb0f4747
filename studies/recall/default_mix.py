"""The default method (`product` on text and recall) against the earlier one (`drrqr` on text).

    python studies/recall/default_mix.py MODEL --text train.jsonl --test wiki.valid.raw \
        --results results/recall/default-NAME.jsonl

Both axes, refitted on the mix that chose the channels, masked in the loaded model. One JSON line
per shape and seed, with intervals of the difference, paired by window and sequence. Lines that the
results already hold are not measured again.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from judge import LOADS, Row, Rows, study_parser
from mixes import EXPERIMENT, MIXES, SHAPES, Experiment
from refitting import refit
from statetrim.maths.paired import Pairs, difference_interval

EARLIER, NOW = ("drrqr", "text"), ("product", "recall .25")
MEASURES = ("nll", *(f"recall {pairs}" for pairs in LOADS))


def samples(workshop: Experiment, shape: str, method: str, mix: str) -> dict[str, Tensor]:
    cut = workshop.cut({"shape": shape, "method": method, "mix": mix, "rule": "scores"})
    shares = MIXES[mix]
    moments = workshop.moments(cut, f"{shape} {method} {mix}", shares)
    cut.weights = refit({name: moments[name] for name in shares}, shares)
    return workshop.judge.samples(cut)


def measured(workshop: Experiment, row: Row) -> Row:
    earlier, now = (samples(workshop, row["shape"], *which) for which in (EARLIER, NOW))
    result: Row = {}
    for name in MEASURES:
        change = difference_interval([Pairs(earlier[name], now[name])])
        result[name] = {
            "original": round(float(workshop.judge.original[name].mean()), 5),
            "earlier": round(float(earlier[name].mean()), 5),
            "now": round(float(now[name].mean()), 5),
            "change": [round(x, 5) for x in (change.estimate, change.low, change.high)],
        }
    return result


def main() -> None:
    sizes = EXPERIMENT | {"windows": 96, "rows": 96}
    parser = study_parser(__doc__, "model", "text", "test", "results", seeds=[0, 1], **sizes)
    shapes = ["1/2 balanced", "1/4 balanced"]
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=shapes)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Rows(options.results)
    for seed in options.seeds:
        base = {"model": options.model.name, "seed": seed, "windows": options.windows}
        rows = [base | {"rows": options.rows, "shape": shape} for shape in options.shapes]
        if not all(map(results.has, rows)):
            options.seed = seed
            results.measure_missing(rows, partial(measured, Experiment(options)))


if __name__ == "__main__":
    main()
