"""Widths by layer: each layer cut alone, and one layer uncut with the others narrower.

    python studies/recall/layers.py MODEL --text train.jsonl --test wiki.valid.raw

One JSON line per cut, masked in the loaded model. Cuts that the results already hold are not
measured again.
"""

from __future__ import annotations

import json
from functools import partial

import torch

from evidence import choose_keys, choose_values
from judge import Row, Rows, study_parser
from masking import Cut
from mixes import EXPERIMENT, MIXES, Experiment
from refitting import error, refit

Widths = list[tuple[int, int]]  # keys and values of every linear layer


def cases(layers: list[int], name: str, kinds: list[str], mixes: list[str]) -> list[Row]:
    """The fields that identify a result line, in the order of measuring."""
    cuts: list[Row] = []
    count = len(layers)
    if "alone" in kinds:
        for keys, values in ((16, 64), (32, 64), (64, 16), (64, 32)):
            for layer in range(count):
                widths = [(64, 64)] * count
                widths[layer] = (keys, values)
                cuts.append({"kind": "alone", "layer": layers[layer], "widths": widths})
    if "uneven" in kinds:
        for fraction in (1 / 2, 1 / 3, 1 / 4):
            other_fraction = (fraction * count - 1) / (count - 1)
            for axis in ("keys", "balanced", "values"):
                uniform = [shape(fraction, axis)] * count
                cuts.append(
                    {"kind": "uniform", "part": round(fraction, 4), "axis": axis, "widths": uniform}
                )
                if other_fraction * 64 >= 2:
                    uneven = [(64, 64)] + [shape(other_fraction, axis)] * (count - 1)
                    cuts.append(
                        {
                            "kind": "first whole",
                            "part": round(fraction, 4),
                            "axis": axis,
                            "widths": uneven,
                        }
                    )
        for whole in range(1, 3):
            squares = [(64, 64)] * whole + [(32, 32)] * (count - whole)
            cuts.append({"kind": "squares", "whole": whole, "axis": "balanced", "widths": squares})
            last = squares[::-1]  # control: the same bytes, but the last layers uncut
            cuts.append({"kind": "squares", "whole": -whole, "axis": "balanced", "widths": last})
    rows = []
    for row in cuts:
        row["widths"] = [list(width) for width in row["widths"]]
        row["bytes"] = round(sum(k * v for k, v in row["widths"]) / (64 * 64 * count), 4)
        for mix, fit in (("text", "text"), ("random .5", "random .5")):
            if mix not in mixes:
                continue
            if row["kind"] == "alone":
                fit = "none"
            rows.append({"model": name} | row | {"mix": mix, "refit": fit})
    return rows


def shape(fraction: float, axis: str) -> tuple[int, int]:
    if axis == "balanced":
        return (round(64 * fraction**0.5), round(64 * fraction**0.5))
    return (round(64 * fraction), 64) if axis == "keys" else (64, round(64 * fraction))


def cut(workshop: Experiment, row: Row) -> Cut:
    """Channels by `product` and `readout_greedy` on the row's mix."""
    model, shares = workshop.checkpoint, MIXES[row["mix"]]
    workshop.collect(shares)
    masked = Cut(keys={}, values={})
    for (keys, values), layer in zip(row["widths"], model.geometry.layers, strict=True):
        if keys < 64:
            table = choose_keys(model, workshop.statistics, "product", "scores", shares, keys)
            masked.keys = {**masked.keys, layer: table[layer]}
        if values < 64:
            table = choose_values(
                model, workshop.statistics, "readout_greedy", "scores", shares, values
            )
            masked.values = {**masked.values, layer: table[layer]}
    return masked


def measured(workshop: Experiment, row: Row) -> Row:
    masked = cut(workshop, row)
    key = json.dumps([row["widths"], row["mix"]])
    names = ["text", "recall", "random"] if row["kind"] == "alone" else ["text", "recall"]
    sums = workshop.moments(masked, key, names)
    weights = {i: workshop.model.projections[i].weight.detach() for i in sums["text"]}
    if row["refit"] != "none":
        weights = masked.weights = refit(
            {n: sums[n] for n in MIXES[row["refit"]]}, MIXES[row["refit"]]
        )
    errors = {
        f"error {name}": [round(error(weight, sums[name][i]), 5) for i, weight in weights.items()]
        for name in names
    }
    return workshop.judge.figures(masked) | errors


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", results="results/recall/layers.jsonl", kinds=["uneven",
        "alone"], mixes=["text"], **EXPERIMENT, seed=0,
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    layers = list(Experiment.layers_of(options.model))
    rows = [
        row | {"seed": options.seed}
        for row in cases(layers, options.model.name, options.kinds, options.mixes)
    ]
    results = Rows(options.results)
    if not all(map(results.has, rows)):
        results.measure_missing(rows, partial(measured, Experiment(options)))


if __name__ == "__main__":
    main()
