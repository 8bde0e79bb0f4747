"""Fewer channels, fewer bits, or both? Shapes x dtypes of the state, on one checkpoint.

    python studies/compare_precision.py MODEL --text train.jsonl --test valid.jsonl --work FOLDER \\
        --results results/precision.jsonl

Cuts are selected and refitted on text and recall sequences, half of the tokens each. Every shape is
measured in every dtype, with its state rounded after every token (as in decoding), against the
original in float32: NLL over windows of 256 tokens, recall as MQAR at 32 and 63 pairs. Intervals
are 95 %, paired by window and by sequence. Lines that exist are not measured again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import statetrim as st
from arguments import study_parser
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.maths.quantization import FORMATS, stored_bytes
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.loading import load_live
from statetrim.runtime.states import StoredStateReader
from statetrim.tasks import recall

SHAPES = {"full": (1.0, 1.0), "1/2": (1.0, 0.5), "1/4": (0.5, 0.5)}  # shares of keys, of values
CALIBRATION: dict[str, Any] = {"tokens": 2**13, "length": 256, "recall": 0.5}
WINDOW, PAIRS = 256, (32, 63)

Row = dict[str, Any]


def make_cut(model: st.Checkpoint, part: str, text: Path, work: Path) -> st.Checkpoint:
    """The refitted cut of a shape, from `work` if it exists."""
    key_share, value_share = SHAPES[part]
    keys = round(key_share * model.geometry.head_k_dim)
    values = round(value_share * model.geometry.head_v_dim)
    if part == "full":
        return model
    out = work / f"{model.path.name}-{keys}x{values}"
    if out.exists():
        return st.open(out)
    statistics_path = work / f"{model.path.name}.safetensors"
    if not statistics_path.exists():
        methods = ["product", "readout_greedy"]
        st.calibrate(model, text, methods=methods, out=statistics_path, **CALIBRATION)
    plan = st.select(
        model,
        "product",
        f"{keys}x{values}",
        value_method="readout_greedy",
        statistics=statistics_path,
    )
    small = st.prune(model, plan, work / f"{out.name}-plain")
    fit_statistics = st.calibrate(small, text, original=model, **CALIBRATION)
    return st.refit(small, fit_statistics, out=out)


class Evaluator:
    """Measures models with rounded states against the original, which is measured once."""

    def __init__(self, model: st.Checkpoint, test: Path, rows: int) -> None:
        tokens = rows * WINDOW
        self.ids = Corpus(test, model).read(tokens=tokens, length=WINDOW).ids.long()
        self.rows = rows
        self.original = self.samples(model, st.StateStorage())

    @torch.inference_mode()
    def samples(self, model: st.Checkpoint, storage: st.StateStorage) -> dict[str, Tensor]:
        """Float64 [rows]: NLL of each window in nats, recall of each sequence in percent."""
        reader = StoredStateReader(load_live(model), storage)
        logits = reader.forward(self.ids)(torch.arange(WINDOW - 1))
        nll = functional.cross_entropy(logits.mT, self.ids[:, 1:], reduction="none").mean(1)
        samples = {"nll": nll.double()}
        for pairs in PAIRS:
            ids, query_positions = recall.associations(
                reader.vocab_size, rows=self.rows, pairs=pairs
            )
            recalled = recall.recalled_share(
                ids, query_positions, reader.forward(ids)(query_positions)
            )
            samples[f"recall {pairs}"] = 100 * recalled.double()
        return samples

    def figures(self, model: st.Checkpoint, storage: st.StateStorage) -> Row:
        """Metric -> mean, change from the original, and both ends of the change's interval."""
        row: Row = {}
        for name, after in self.samples(model, storage).items():
            change = difference_interval([Pairs(self.original[name], after)])
            values = (float(after.mean()), change.estimate, change.low, change.high)
            row[name] = [round(value, 5) for value in values]
        return row


def main() -> None:
    parser = study_parser(__doc__, "model", "text", "test", "work", "results")
    parser.add_argument("--rows", type=int, default=12, help="windows, and recall sequences")
    parser.add_argument("--dtypes", nargs="+", default=list(FORMATS), choices=FORMATS)
    parser.add_argument("--stochastic", action="store_true", help="round up or down by chance")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    model = st.open(options.model)
    evaluator = Evaluator(model, options.test, options.rows)
    keys = ("model", "part", "dtype", "stochastic")
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done = {tuple(json.loads(line)[key] for key in keys) for line in lines}
    for part, (key_share, value_share) in SHAPES.items():
        shape = (
            round(key_share * model.geometry.head_k_dim),
            round(value_share * model.geometry.head_v_dim),
        )
        for dtype in options.dtypes:
            case = (model.path.name, part, dtype, options.stochastic)
            if case in done:
                continue
            row: Row = dict(zip(keys, case, strict=True))
            float32_bytes = model.geometry.head_k_dim * model.geometry.head_v_dim * 4
            row["shape"], row["bytes"] = list(shape), stored_bytes(dtype, *shape) / float32_bytes
            small = make_cut(model, part, options.text, options.work)
            row |= evaluator.figures(small, st.StateStorage(dtype, 1, options.stochastic))
            with options.results.open("a") as file:
                print(json.dumps(row), file=file)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
