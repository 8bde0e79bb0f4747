"""What holds of our claims on a model that others trained: neovad, Mamba-2, on real speech.

    python studies/compare_speech.py NEOVAD --clips pyannote.audio-3.0.1.tar.gz --work WORK

Every method on keys at 75, 50 and 25 % and on values at 50 %, which is all that a stock config of
this model can say, both together (refitted), and keys by layer, for three samples of five training
clips. Measured on the four clips that were not used: the KL of the three classes and the share of
frames with another class, with 95 % intervals over clips. A line per cut is added to the results;
lines that exist are not run again.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import statetrim as st
from arguments import study_parser
from speech_model import FrameModel, classes, write_frame_model
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.runtime.live import find_decoder
from statetrim.selection.allocate import cheapest_allocation
from statetrim.storage.text import Sequences

Row = dict[str, Any]
LENGTH = 500
KEYS = ("product", "ghost", "drrqr", "s_wanda", "energy", "l1", "rand")
VALUES = ("readout_greedy", "readout_rrqr", "readout_energy", "readout_l1", "rand")
WITHOUT_STATISTICS = ("l1", "readout_l1", "rand")
SHARES = (0.75, 0.5, 0.25)
WIDTH, VALUE_WIDTH = 64, 32


class Evaluator:
    """Compares the classes of cuts with those of the original on the same clips."""

    def __init__(self, frames: FrameModel, names: list[str]) -> None:
        self.frames = frames
        self.ids = [frames.clips[name].long() for name in names]
        self.expected = self._classes(frames.path)

    @torch.inference_mode()
    def _classes(self, model: Path) -> list[Tensor]:
        decoder = find_decoder(st.load(model))
        outputs = []
        for ids in self.ids:
            hidden = decoder(input_ids=ids.unsqueeze(0), use_cache=False).last_hidden_state
            outputs.append(classes(hidden, self.frames.weights)[0])
        return outputs

    def figures(self, model: Path) -> Row:
        """KL in nats and the share of frames with another class, each with its interval."""
        kl, changed = list[float](), list[float]()
        for before, after in zip(self.expected, self._classes(model), strict=True):
            kl.append(float((before.exp() * (before - after)).sum(-1).mean()))
            changed.append(float((before.argmax(-1) != after.argmax(-1)).double().mean()))
        return {"kl": interval(kl), "other class": interval(changed)}


def interval(values: list[float]) -> list[float]:
    samples = torch.tensor(values, dtype=torch.float64)
    change = difference_interval([Pairs(torch.zeros_like(samples), samples)])
    return [round(number, 6) for number in (change.estimate, change.low, change.high)]


def sequences(frames: FrameModel, names: list[str]) -> Sequences:
    """The frames of these clips, in sequences of LENGTH."""
    rows = []
    for name in names:
        ids = frames.clips[name]
        rows.append(ids[: len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH))
    ids = torch.cat(rows)
    digest = hashlib.sha256(ids.numpy().tobytes()).hexdigest()
    return Sequences(ids, {"text": f"clips {', '.join(names)}", "digest": digest})


def cases() -> list[Row]:
    """What identifies each line of the results, for one sample of clips."""
    rows: list[Row] = []
    for share in SHARES:
        kept = int(WIDTH * share)
        for method in KEYS:
            rows.append({"axis": "keys", "method": method, "to": f"{kept}x{WIDTH}"})
        rows.append({"axis": "keys by layer", "method": "product", "share": share})
        rows.append({"axis": "both", "method": "default", "to": f"{kept}x{VALUE_WIDTH}"})
    for method in VALUES:
        rows.append({"axis": "values", "method": method, "to": f"{WIDTH}x{VALUE_WIDTH}"})
    return rows


class Sample:
    """Cuts that were calibrated on one sample of clips."""

    def __init__(self, frames: FrameModel, names: list[str], work: Path) -> None:
        self.model, self.work = st.open(frames.path), work
        self.evaluator = Evaluator(frames, names)
        self.read = sequences(frames, names)
        path, methods = work / "statistics.safetensors", [*KEYS, *VALUES]
        calibrated = [name for name in methods if name not in WITHOUT_STATISTICS]
        if not path.exists():
            st.calibrate(
                self.model, self.read, methods=calibrated, batch_size=4, out=path, progress=False
            )
        self.statistics = st.Statistics.load(path)

    def cut(self, row: Row, to: str, seed: int) -> Path:
        """Write the cut, refitted if values are removed."""
        for leftover in ("cut", "refit"):
            shutil.rmtree(self.work / leftover, ignore_errors=True)
        key_method = row["method"] if row["axis"].startswith("keys") else "product"
        value_method = row["method"] if row["axis"] == "values" else "readout_greedy"
        plan = st.select(
            self.model, key_method, to, value_method=value_method, statistics=self.statistics,
            seed=seed, progress=False,
        )  # fmt: skip
        small = st.prune(self.model, plan, self.work / "cut", uneven=True, progress=False)
        if row["axis"].startswith("keys"):
            return small.path
        pairs = st.calibrate(small, self.read, original=self.model, batch_size=4, progress=False)
        return st.refit(small, pairs, out=self.work / "refit", progress=False).path

    def widths_by_layer(self, share: float) -> str:
        """The cheapest widths, where a layer costs the KL of cutting it alone to that shape."""
        path = self.work / "layers.json"
        costs: dict[int, dict[tuple[int, int], float]] = {}
        if path.exists():
            for layer, shape, cost in json.loads(path.read_text()):
                costs.setdefault(layer, {})[tuple(shape)] = cost
        else:
            layers = self.model.geometry.layers
            for layer in layers:
                costs[layer] = {(WIDTH, WIDTH): 0.0}
                for kept in (48, 32, 16):
                    to = f"{layer}={kept}x{WIDTH},others={WIDTH}x{WIDTH}"
                    cut = self.cut({"axis": "keys", "method": "product"}, to, 0)
                    costs[layer][kept, WIDTH] = self.evaluator.figures(cut)["kl"][0]
            rows = [[a, list(s), c] for a, shapes in costs.items() for s, c in shapes.items()]
            path.write_text(json.dumps(rows))
        return str(cheapest_allocation(costs, share, WIDTH * WIDTH))


def main() -> None:
    parser = study_parser(
        __doc__, "model", "clips", "work", results="results/speech.jsonl", samples=3
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    frames = write_frame_model(options.model, options.clips, options.work / "model")
    training = sorted(name for name in frames.clips if name.startswith("trn"))
    test = Evaluator(frames, sorted(set(frames.clips) - set(training)))
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done = [json.loads(line) for line in lines]
    for number in range(options.samples):
        names = sorted(random.Random(number).sample(training, 5))
        work = options.work / f"sample-{number}"
        work.mkdir(exist_ok=True)
        sample: Sample | None = None
        for case in cases():
            row = {"sample": number, **case}
            if any(row.items() <= line.items() for line in done):
                continue
            sample = sample or Sample(frames, names, work)
            to = case.get("to") or sample.widths_by_layer(case["share"])
            cut = sample.cut(case, to, number)
            row |= {"widths": to, **test.figures(cut)}
            print(json.dumps(row), flush=True)
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
