"""Keys, values or both? Cuts of both axes of the state at equal bytes, on one checkpoint.

    python studies/compare_axes.py MODEL --text train.jsonl --test wiki.valid.raw \\
        --method product --value-method readout_greedy --results results/two-axes.jsonl

For every share of the state's bytes it removes key channels alone, value channels alone, both to a
square, and both with more of either. It measures each cut before and after a refit of the output
projections, and after a short recovery of the refitted model, and adds a line per measurement to
the results. Lines that exist are not measured again. NLL and KL are over windows of 256 tokens of
the test text, recall is MQAR (mqar.py); intervals are 95 %, paired by window and by sequence.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from math import exp, isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import mqar
import statetrim as st
from arguments import study_parser
from compare_methods import Evaluator, hidden, log_p
from statetrim.geometry import Geometry
from statetrim.maths.paired import Pairs, difference_interval

PARTS = ("1/4", "1/16", "1/2", "3/8")
SHAPES = ("key", "value", "square", "more keys", "more values")
STEPS = ("cut", "refit", "recovered")
RECALL_PAIRS = (8, 16, 32)
ROWS = 32  # recall sequences for each number of pairs
CALIBRATION: dict[str, Any] = {"tokens": 2**15, "length": 512, "recall": 0.0}
REFIT: dict[str, Any] = {
    "tokens": 2**14,
    "length": 512,
    "recall": 0.0,
}  # 64 tokens for each of at most 256 columns
RECOVERY: dict[str, Any] = {"tokens": 2**15, "length": 256, "batch_size": 8, "learning_rate": 1e-3}

Row = dict[str, Any]


class AxesEvaluator(Evaluator):
    """Measures models on text and recall, with paired intervals of the change from the original."""

    def __init__(self, model: st.Checkpoint, test: Path, count: int) -> None:
        super().__init__(model, test, count)
        self.original_samples = self.samples(self.original)

    @torch.inference_mode()
    def samples(self, live: Any) -> dict[str, Tensor]:
        """Float64 [windows] of NLL and KL, and [sequences] of recall by the number of pairs."""
        samples = self.on_text(live)
        for pairs in RECALL_PAIRS:
            samples[f"recall {pairs}"] = recall_accuracies(live, pairs, ROWS, seed=1234)
        return samples

    def on_text(self, live: Any) -> dict[str, Tensor]:
        """Float64 [windows] of NLL and KL."""
        nll, kl = [], []
        for batch, original in zip(self.batches, self.hidden, strict=True):
            cut_log_p = log_p(live, original if live is self.original else hidden(live, batch))
            original_log_p = log_p(self.original, original)
            nll.append(functional.nll_loss(cut_log_p.mT, batch[:, 1:], reduction="none").mean(1))
            kl.append((original_log_p.exp() * (original_log_p - cut_log_p)).sum(-1).mean(1))
        return {"nll": torch.cat(nll).double(), "kl": torch.cat(kl).double()}

    def figures(self, live: Any) -> Row:
        samples = self.original_samples if live is self.original else self.samples(live)
        row: Row = {}
        for name, after in samples.items():
            before = torch.zeros_like(after) if name == "kl" else self.original_samples[name]
            change = difference_interval([Pairs(before, after)])
            row[name] = [round(float(after.mean()), 5), round(change.low, 5), round(change.high, 5)]
        row["perplexity"] = round(exp(row["nll"][0]), 2)
        return row


def recall_accuracies(live: Any, pairs: int, rows: int, seed: int, hops: int = 1) -> Tensor:
    """Float64 [rows]: the share of a sequence's pairs that the model recalls."""
    generator = torch.Generator().manual_seed(seed)
    draw = mqar.two_hop_batch if hops == 2 else mqar.batch
    ids, query_positions = draw(live.config.vocab_size, pairs, rows, generator)
    correct = (
        mqar.query_logits(live, ids, query_positions).argmax(-1) == ids[:, query_positions + 1]
    )
    return correct.double().mean(1)


def shapes_for_share(geometry: Geometry, share: Fraction) -> dict[str, tuple[int, int]]:
    """(key width, value width) of cuts to at most, and nearly, this share of the state's bytes: of
    one axis alone, of both to a square, and of both with one axis wider."""
    keys, values = geometry.head_k_dim, geometry.head_v_dim
    budget = int(share * keys * values)
    side = min(isqrt(budget), keys, values)
    longer = min(2 * side if share <= Fraction(1, 8) else (4 * side + 2) // 3, keys, values)
    shapes = {
        "key": (budget // values, values),
        "value": (keys, budget // keys),
        "square": (side, side),
        "more keys": (longer, min(budget // max(longer, 1), values)),
        "more values": (min(budget // max(longer, 1), keys), longer),
    }
    if not 0 < share < 1 or not all(min(shape) for shape in shapes.values()):
        raise st.StatetrimError(
            f"{share} of a state of {keys} x {values} leaves an axis with nothing; give a "
            f"fraction between {Fraction(1, min(keys, values))} and 1"
        )
    return shapes


def cases(options: argparse.Namespace, geometry: Geometry) -> list[Row]:
    """The keys that identify each line of the results, in the order of measuring."""
    name = options.name or options.model.resolve().name
    rows: list[Row] = [{"model": name, "part": "1", "shape": "original", "step": "cut"}]
    for step in options.steps:
        for part in options.parts:
            for kind in options.shapes:
                keys, values = shapes_for_share(geometry, Fraction(part))[kind]
                methods = {
                    "key_method": None if kind == "value" else options.method,
                    "value_method": None if kind == "key" else options.value_method,
                }
                row = {"model": name, "part": part, "shape": kind, "size": [keys, values]}
                rows.append({**row, **methods, "step": step})
    return rows


class CutMaker:
    """Makes cuts of one model with statetrim's commands; calibrates once."""

    def __init__(self, model: st.Checkpoint, text: Path, methods: list[str], folder: Path) -> None:
        self.model, self.text, self.folder = model, text, folder
        statistics_path = folder / f"{model.digest[:12]}-{'-'.join(sorted(methods))}.safetensors"
        if statistics_path.exists():
            self.statistics = st.Statistics.load(statistics_path)
        else:
            self.statistics = st.calibrate(
                model, text, methods=methods, out=statistics_path, **CALIBRATION
            )

    def make_checkpoint(self, row: Row) -> st.Checkpoint:
        keys, values = row["size"]
        name = f"{row['model']}-{keys}x{values}-{row['key_method']}-{row['value_method']}"
        plan = st.select(
            self.model,
            row["key_method"] or "l1",
            f"{keys}x{values}",
            value_method=row["value_method"] or "readout_l1",
            statistics=self.statistics,
        )
        cut = st.prune(self.model, plan, self.folder / f"{name}-cut")
        if row["step"] == "cut":
            return cut
        statistics = st.calibrate(cut, self.text, original=self.model, **REFIT)
        cut = st.refit(cut, statistics, out=self.folder / f"{name}-refit")
        if row["step"] == "refit":
            return cut
        return st.recover(
            cut,
            teacher=self.model,
            text=self.text,
            skip=CALIBRATION["tokens"],
            out=self.folder / f"{name}-recovered",
            **RECOVERY,
        )


def measure_rows(rows: list[Row], maker: CutMaker, evaluator: AxesEvaluator) -> Iterator[Row]:
    for row in rows:
        if row["shape"] == "original":
            yield row | evaluator.figures(evaluator.original)
        else:
            yield row | evaluator.figures(st.load(maker.make_checkpoint(row)))


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", results="results/two-axes.jsonl", name=None,
        method="energy", value_method="readout_greedy", parts=list(PARTS), windows=48, work=None,
    )  # fmt: skip
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    done: list[Row] = []
    if options.results.exists():
        done = [json.loads(line) for line in options.results.read_text().splitlines()]
    model = st.open(options.model)
    rows = cases(options, model.geometry)
    missing = [row for row in rows if not any(row.items() <= old.items() for old in done)]
    print(f"{len(missing)} of {len(rows)} lines to measure", flush=True)
    if not missing:
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.work or Path(temporary)
        folder.mkdir(exist_ok=True)
        methods = [options.method, options.value_method]
        maker = CutMaker(model, options.text, methods, folder)
        evaluator = AxesEvaluator(model, options.test, options.windows)
        for row in measure_rows(missing, maker, evaluator):
            with options.results.open("a") as results:
                results.write(json.dumps(row) + "\n")
            print(row["part"], row["shape"], row["step"], row["perplexity"], flush=True)


if __name__ == "__main__":
    main()
