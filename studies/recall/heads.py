"""Why not whole heads? Removed heads against removed channels at the same bytes.

    python studies/recall/heads.py MODEL --text train.jsonl --test wiki.valid.raw \
        --results results/recall/heads-NAME.jsonl

In every layer the kept heads are those whose refit has the smallest residual of the layer's output,
found by trying all combinations. To remove a head its read-out is masked, which is equivalent
because the heads of the delta rule are independent. One JSON line per cut.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from judge import Row, Rows, study_parser
from masking import Cut
from mixes import EXPERIMENT, MIXES, Experiment
from refitting import Moments, error, refit

MIX = "recall .25"


def mask_readout(moments: Moments, columns: Tensor) -> Moments:
    """The moments of a layer with only the read-out `columns`, bool [n]; the others are zero."""
    gram = moments.gram * columns[:, None] * columns[None, :]
    return Moments(gram, moments.target * columns, moments.square, moments.tokens)


def best_heads(sums: dict[str, dict[int, Moments]], heads: int, keep: int) -> dict[int, Any]:
    """Layer -> residual, kept heads, and the output projection fitted to them."""
    best: dict[int, Any] = {}
    shares = MIXES[MIX]
    for layer in sums["text"]:
        tried = []
        for kept in itertools.combinations(range(heads), keep):
            width = sums["text"][layer].gram.shape[0] // heads
            mask = torch.zeros(heads, width, dtype=torch.bool)
            mask[list(kept)] = True
            masked = {n: {layer: mask_readout(sums[n][layer], mask.flatten())} for n in shares}
            weight = refit(masked, shares)[layer]
            residual = sum(s * error(weight, masked[n][layer]) for n, s in shares.items())
            tried.append((residual, kept, weight))
        best[layer] = min(tried, key=lambda trial: trial[0])
    return best


def main() -> None:
    sizes = EXPERIMENT | {"windows": 96, "rows": 96}
    parser = study_parser(__doc__, "model", "text", "test", "results", seed=0, **sizes)
    options = parser.parse_args()
    torch.set_num_threads(1)
    workshop = Experiment(options)
    geometry = workshop.checkpoint.geometry
    everything = torch.arange(geometry.head_v_dim).expand(geometry.num_v_heads, -1)
    uncut = Cut(values=dict.fromkeys(geometry.layers, everything))
    base = {"model": options.model.name, "seed": options.seed, "windows": options.windows}

    def measure(row: Row) -> Row:
        sums = workshop.moments(uncut, "whole", MIXES[MIX])
        keep = geometry.num_v_heads // int(row["part"].removeprefix("1/"))
        chosen = best_heads(sums, geometry.num_v_heads, keep)
        cut = Cut(weights={layer: weight for layer, (_, _, weight) in chosen.items()})
        details = {"heads": {str(layer): list(kept) for layer, (_, kept, _) in chosen.items()}}
        details["missed"] = {str(layer): round(x, 5) for layer, (x, _, _) in chosen.items()}
        return workshop.judge.figures(cut) | details

    rows = [base | {"rows": options.rows, "part": part, "mix": MIX} for part in ("1/2", "1/4")]
    Rows(options.results).measure_missing(rows, measure)


if __name__ == "__main__":
    main()
