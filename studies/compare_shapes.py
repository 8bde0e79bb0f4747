"""Does `trim` choose a shape well? Compares its choice with all others of the same bytes.

    python studies/compare_shapes.py MODEL --text train.jsonl --test wiki.valid.raw --work FOLDER

For each share of the state's bytes, `trim --to SHARE` chooses a shape; then `trim --to SHAPE`
prunes to every candidate with the same options. All are measured on another text and other recall
sequences than those of the choice: NLL over windows of 256 tokens, recall by MQAR (mqar.py);
intervals are 95 %, paired by window and by sequence. A line per shape is added to the results;
lines that exist are not measured again. `plot_shapes.py` draws them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import statetrim as st
from arguments import study_parser
from compare_axes import AxesEvaluator, recall_accuracies
from statetrim.maths.paired import Pairs, difference_interval

ROWS = 64  # recall sequences for each number of pairs

Row = dict[str, Any]


class ShapesEvaluator(AxesEvaluator):
    """Measures NLL, KL and one figure for recall: the mean over all numbers of pairs."""

    def __init__(self, model: st.Checkpoint, test: Path, count: int, pairs: list[int]) -> None:
        self.pairs = pairs
        super().__init__(model, test, count)

    @torch.inference_mode()
    def samples(self, live: Any) -> dict[str, torch.Tensor]:
        """Float64 [windows] of NLL and KL, and [sequences] of recall."""
        recall = torch.stack(
            [recall_accuracies(live, pairs, ROWS, seed=4321) for pairs in self.pairs]
        )
        return self.on_text(live) | {"recall": recall.mean(0)}

    def figures(self, live: Any) -> Row:
        """Metric -> mean, change from the original, and both ends of the change's interval."""
        row: Row = {}
        for name, after in self.samples(live).items():
            before = torch.zeros_like(after) if name == "kl" else self.original_samples[name]
            change = difference_interval([Pairs(before, after)])
            bounds = (change.estimate, change.low, change.high)
            row[name] = [round(float(after.mean()), 5), *(round(x, 5) for x in bounds)]
        return row


def trim_seconds(model: st.Checkpoint, options: st.TrimOptions, out: Path) -> float:
    """Run trim and return its CPU seconds, which other load on the machine does not change."""
    start = time.process_time()
    st.trim(model, **vars(options), out=out)
    return round(time.process_time() - start, 1)


def study(options: argparse.Namespace, share: float, done: list[Row]) -> list[Row]:
    """The lines of one share of the state's bytes that the results lack."""
    model = st.open(options.model)
    name = model.path.resolve().name
    settings = st.TrimOptions(text=options.text, tokens=options.tokens, control=False)
    decided_path = options.work / f"{name}-state-{share:g}"
    deciding_seconds = trim_seconds(model, replace(settings, to=share), decided_path)
    if any(row["model"] == name and row["share"] == share for row in done):
        return []
    decision = json.loads((decided_path / "statetrim" / "decision.json").read_text())
    evaluator = ShapesEvaluator(model, options.test, options.windows, options.pairs)
    base = {"model": name, "share": share, "original": evaluator.figures(evaluator.original)}
    rows = []
    for shape, cost in decision["predicted"].items():
        fixed_path = options.work / f"{name}-{shape}"
        seconds = trim_seconds(model, replace(settings, to=shape, refit=True), fixed_path)
        figures = evaluator.figures(st.load(st.open(fixed_path)))
        chosen = {"chosen": shape == decision["chosen"], "refused": decision["refused"][shape]}
        times = {"cpu_seconds": seconds, "deciding_cpu_seconds": deciding_seconds}
        rows.append(base | {"shape": shape, "predicted": cost} | chosen | figures | times)
        shutil.rmtree(fixed_path)
        print(name, share, shape, "chosen" if chosen["chosen"] else "", figures, flush=True)
    return rows


def main() -> None:
    parser = study_parser(
        __doc__, "model", "text", "test", "work", results="results/shapes.jsonl", shares=[0.5,
        0.25], tokens="32k", windows=96, pairs=[16, 32, 63],
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    for share in options.shares:
        done: list[Row] = []
        if options.results.exists():
            done = [json.loads(line) for line in options.results.read_text().splitlines()]
        with options.results.open("a") as results:
            results.writelines(json.dumps(row) + "\n" for row in study(options, share, done))


if __name__ == "__main__":
    main()
