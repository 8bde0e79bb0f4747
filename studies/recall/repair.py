"""What training recovers of a cut: NLL and recall against a control.

    python studies/recall/repair.py MODEL --text train.jsonl --test wiki.valid.raw --work DIRECTORY

Cuts MODEL by the defaults on text and recall sequences, refits it on the same mix, then trains it
in stages: the first layer's mixer to the original's output, then all mixers end to end. Widths by
layer, those that `uneven.py pages` wrote to `--pages`, are trained end to end only. The control is
the original after the second stage. The seed is that of the calibration and of the training, each
on text of its own. One JSON line per model; finished steps are not repeated.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import statetrim as st
from judge import LOADS, SHAPES, Judge, Row, Rows, study_parser
from statetrim import defaults
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.runtime.loading import load_live
from statetrim.storage.json_file import read_json

# Share of the bytes, and the heads for which pages were counted: None for the model's own.
BY_LAYER: dict[str, tuple[float, int | None]] = {
    "1/2 by layer": (1 / 2, None),
    "1/4 by layer": (1 / 4, None),
    "1/4 by layer for 16 heads": (1 / 4, 16),
}
CALIBRATED = 2**15
SEEN = 2**17  # tokens of text that calibration may have read
TRAINED = 2**22  # tokens of text that training may have read


class Study:
    """One model, its cuts on disk below `work`, and samples of the models measured so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.model = options, st.open(options.model)
        self.judge = Judge(self.model, options.test, options.windows, options.rows)
        self.samples: dict[str, dict[str, Tensor]] = {}

    def cut(self, shape: str) -> st.Checkpoint:
        options = self.options
        to = self.widths(shape)
        mix: dict[str, Any] = {"recall": defaults.RECALL_SHARE, "seed": options.seed}
        mix |= {"length": 256, "tokens": CALIBRATED, "skip": options.seed * SEEN}
        stem = f"{self.model.path.name}-seed{options.seed}"
        sums = options.work / f"{stem}.safetensors"
        methods = [defaults.KEY_METHOD, defaults.VALUE_METHOD]
        if not sums.exists():
            st.calibrate(self.model, options.text, methods=methods, out=sums, **mix)
        plan = st.select(self.model, methods, to, statistics=sums)
        name = f"{stem}-{shape.replace('/', '-').replace(' ', '-')}"
        small = st.prune(self.model, plan, options.work / name, uneven=shape in BY_LAYER)
        fitted = options.work / f"{name}-refit"
        if fitted.exists():
            return st.open(fitted)
        sums_of_fit = st.calibrate(small, options.text, original=self.model, **mix)
        return st.refit(small, sums_of_fit, out=fitted)

    def widths(self, shape: str) -> str:
        """The shape as `--to` takes it."""
        if shape in SHAPES:
            return "{}x{}".format(*SHAPES[shape])
        share, heads = BY_LAYER[shape]
        chosen = {"model": self.model.path.name, "seed": self.options.seed, "share": share}
        chosen["heads"] = heads or self.model.geometry.num_v_heads
        return str(Rows(self.options.pages).select(**chosen)[0]["widths"])

    def train(
        self, small: st.Checkpoint, stage: Row, **control_options: Any
    ) -> tuple[st.Checkpoint, Row]:
        """The checkpoint after one training stage, and figures of the training."""
        seed = self.options.seed
        stage_key = "-".join(f"{key[:3]}{value}" for key, value in stage.items() if key != "name")
        stage_key += f"-control-seed{seed}" if control_options else ""
        out = self.options.work / f"{small.path.name}-{stage_key}".replace(" ", "")
        options = {key.replace(" ", "_"): value for key, value in stage.items() if key != "name"}
        if "layerwise" not in stage:
            options["save_every"] = 10**6
        start = time.process_time()
        done = st.recover(
            small, teacher=self.model, text=self.options.text, out=out, length=256, batch_size=8,
            skip=2 * SEEN + seed * TRAINED, seed=seed, whole=True, progress=False,
            **options, **control_options,
        )  # fmt: skip
        record = read_json(out / "statetrim" / "recover.json", 2**26)
        curve, checks = record["curve"], record.get("held_out", [])
        checked = {
            "held out": [
                [c["tokens"], round(c.get("recall", c.get("recall_error")), 4)] for c in checks
            ]
        }
        losses = [round(line["loss"], 4) for line in (curve[0], curve[-1])]
        return done, checked | {"losses": losses, "cpu": round(time.process_time() - start)}

    def figures(self, name: str, model: st.Checkpoint, against: str | None) -> Row:
        """Figures against the original, and against `against`, a model measured before."""
        self.samples[name] = samples = self.judge.samples(load_live(model))
        row = self.judge.figures(samples)
        if against is not None:
            row["against control"] = differences = {}
            for key in ("nll", *(f"recall {pairs}" for pairs in LOADS)):
                change = difference_interval([Pairs(self.samples[against][key], samples[key])])
                bounds = (change.estimate, change.low, change.high)
                differences[key] = [round(x, 5) for x in bounds]
        return row


def stages(options: argparse.Namespace) -> list[Row]:
    """The training stages: the first layer alone, then all layers end to end."""
    shared = {"recall": options.recall}
    last = {"recall": options.recall if options.last_recall is None else options.last_recall}
    first = {"layerwise": True, "layers": [options.layer], "tokens": options.first_tokens}
    rates = {"learning rate": options.first_rate}, {"learning rate": options.rate}
    second = {"tokens": options.tokens}
    return [
        {"name": "first layer"} | first | rates[0] | shared,
        {"name": "all layers"} | second | rates[1] | last,
    ]


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", "results", recall=0.5, layer=0,
        first_tokens=2**21, first_rate=1e-3, tokens=2**19, rate=5e-4, windows=128, rows=64, seed=0,
    )  # fmt: skip
    parser.add_argument(
        "--shapes",
        nargs="+",
        choices=[*SHAPES, *BY_LAYER],
        default=["1/2 balanced", "1/4 balanced"],
    )
    parser.add_argument("--pages", type=Path, default=Path("results/pages.jsonl"))
    parser.add_argument("--last-recall", type=float, help="of the second stage, where it differs")
    parser.add_argument("--first-only", action="store_true", help="no second stage, no control")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(exist_ok=True, parents=True)
    results = Rows(options.results)
    study = Study(options)
    first, last = stages(options)
    base = {"model": options.model.name, "windows": options.windows, "rows": options.rows}

    def add(row: Row, model: st.Checkpoint, details: Row, against: str | None = None) -> None:
        """Measure a model and write its line, unless the results hold it already."""
        row = base | row
        result = row | study.figures(row["kind"], model, against) | details
        if not results.has(row):
            results.add(result)

    add({"kind": "original"}, study.model, {})
    if not options.first_only:
        control, details = study.train(study.model, last, control=True)
        add({"kind": "control", "seed": options.seed, "training": [last]}, control, details)
    for shape in options.shapes:
        row: Row = {"shape": shape, "seed": options.seed, "widths": study.widths(shape)}
        small = study.cut(shape)
        add(row | {"kind": "cut"}, small, {})
        training: list[Row] = []
        for stage in (
            [last] if shape in BY_LAYER else [first] if options.first_only else [first, last]
        ):
            small, details = study.train(small, stage)
            training.append(stage)
            against = "control" if stage is last else None
            add(row | {"kind": stage["name"], "training": training}, small, details, against)


if __name__ == "__main__":
    main()
