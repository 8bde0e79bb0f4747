"""What holds of our claims on a model that others trained: neovad, Mamba-2, on real speech.

    python studies/speech.py run NEOVAD --clips pyannote.audio-3.0.1.tar.gz --work WORK
    python studies/speech.py recover NEOVAD --clips pyannote.audio-3.0.1.tar.gz --work WORK
    python studies/speech.py codes NEOVAD --clips pyannote.audio-3.0.1.tar.gz
    python studies/speech.py page

`run`: every method on keys at 75, 50 and 25 % and on values at 50 %, which is all that a stock
config of this model can say, both together (refitted), and keys by layer, for three samples of five
training clips. Measured on the four clips that were not used: the KL of the three classes and the
share of frames with another class, with 95 % intervals over clips.

`recover`: cuts after training. `recover` of the package distils through the head of a language
model, which this model lacks, but layer by layer it needs none: each mixer learns the output of the
original's, on the ten training clips. The control is a random choice of channels.

`codes`: stored states by code, as in snapshots.py, on windows of 512 frames, half of them before
the copy. With seed 0 the metric is calibrated on every other clip, with seed 1 on the rest.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache

import statetrim as st
from runner import Row, Rows, fill, read_rows, start, study_parser, table
from snapshots import METRICS, Grams, change_of, mean_rank
from speech_model import (
    MELS,
    FrameModel,
    classes,
    embed,
    mel_frames,
    read_clips,
    write_frame_model,
)
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.runtime.kernel_hooks import hook_kernels
from statetrim.runtime.live import find_decoder
from statetrim.runtime.loading import load_live
from statetrim.selection.allocate import cheapest_allocation
from statetrim.snapshots.snapshot import Code, recode
from statetrim.storage.text import Sequences

LENGTH = 500
KEYS = ("product", "ghost", "drrqr", "s_wanda", "energy", "l1", "rand")
VALUES = ("readout_greedy", "readout_rrqr", "readout_energy", "readout_l1", "rand")
WITHOUT_STATISTICS = ("l1", "readout_l1", "rand")
SHARES = (0.75, 0.5, 0.25)
WIDTH, VALUE_WIDTH = 64, 32
CUTS = (("product", "32x64"), ("rand", "32x64"), ("product", "16x64"), ("rand", "16x64"))
HALF = 256
CODES: tuple[tuple[Code, str], ...] = (
    *((code, "none") for code in ("bfloat16", "int8", "int5", "int4", 0.02, 0.05, 0.1)),
    *((code, "query") for code in (0.02, 0.05, 0.1)),
    *((0.05, metric) for metric in METRICS if metric != "query"),
)
COLOURS = {  # Okabe and Ito's
    "product": "#0072B2", "energy": "#009E73", "drrqr": "#56B4E9", "s_wanda": "#E69F00",
    "l1": "#D55E00", "rand": "#000000", "ghost": "#CC79A7",
}  # fmt: skip
DEFAULTS = ("product", "readout_greedy", "default")
"""The methods that a command takes by default, for keys, values and both."""


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


class Clips:
    """The frame model, its training clips and test clips, and samples of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        self.work = options.work
        self.frames = write_frame_model(options.model, options.clips, options.work / "model")
        names = self.frames.clips
        self.training = sorted(name for name in names if name.startswith("trn"))
        self.test = Evaluator(self.frames, sorted(set(names) - set(self.training)))
        self.samples: dict[int, Sample] = {}

    def sample(self, number: int) -> Sample:
        if number not in self.samples:
            work = self.work / f"sample-{number}"
            work.mkdir(exist_ok=True)
            names = sorted(random.Random(number).sample(self.training, 5))
            self.samples = {number: Sample(self.frames, names, work)}  # one at a time
        return self.samples[number]


def run() -> None:
    parser = study_parser(
        __doc__, "model", "clips", "work", results="results/speech.jsonl", samples=3
    )
    options = parser.parse_args()
    clips = Clips(options)

    def measure(row: Row) -> Row:
        sample = clips.sample(row["sample"])
        to = row.get("to") or sample.widths_by_layer(row["share"])
        return {"widths": to, **clips.test.figures(sample.cut(row, to, row["sample"]))}

    rows = [{"sample": number, **case} for number in range(options.samples) for case in cases()]
    Rows(options.results).measure_missing(rows, measure)


def run_recovery() -> None:
    parser = study_parser(
        __doc__, "model", "clips", "work", results="results/speech-recovery.jsonl", samples=3,
        rate=2e-3,
    )  # fmt: skip
    options = parser.parse_args()
    clips, out = Clips(options), options.work / "recovered"

    def measure(row: Row) -> Row:
        shutil.rmtree(out, ignore_errors=True)
        cut = clips.sample(row["sample"]).cut(row, row["to"], row["sample"])
        recovered = st.recover(
            cut, teacher=clips.frames.path, layerwise=True, batch_size=2, out=out, progress=False,
            text=sequences(clips.frames, clips.training), learning_rate=options.rate,
        )  # fmt: skip
        return clips.test.figures(recovered.path)

    rows = []
    for number in range(options.samples):
        for method, to in CUTS:
            row = {"sample": number, "axis": "keys", "method": method, "to": to}
            rows.append(row | {"rate": options.rate})
    Rows(options.results).measure_missing(rows, measure)


class Model:
    """The backbone with its input projection and its head of three classes."""

    def __init__(self, path: Path) -> None:
        self.weights = load_file(path / "frontend_and_head.safetensors")
        self.live = load_live(st.open(path))
        self.decoder = find_decoder(self.live.module)

    def run(self, frames: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Log-probabilities [rows, time, 3] of frames [rows, time, mels], and the cache."""
        w = self.weights
        hidden = embed(frames, w)
        if cache is None:
            cache = DynamicCache(config=self.decoder.config)
        # Without attention layers transformers' cache knows no length, and its mask asks for one.
        read = getattr(cache, "frames_read", 0)
        cache.get_seq_length = lambda *_, **__: read
        cache.get_mask_sizes = lambda query_length, *_, **__: (read + query_length, 0)
        outputs = self.decoder(inputs_embeds=hidden, use_cache=True, past_key_values=cache)
        cache.frames_read = read + frames.shape[1]
        return classes(outputs.last_hidden_state, w), cache


@torch.inference_mode()
def compare(model: Model, clips: list[Tensor], seed: int) -> Iterator[Row]:
    """A line for each code, with the metric of the other clips."""
    grams, windows = Grams(model.live), list[Tensor]()
    with hook_kernels(model.live, grams.add):
        for frames in clips[1 - seed :: 2]:
            model.run(frames[: 4 * HALF].unsqueeze(0))
    for frames in clips[seed::2]:
        windows += frames[: len(frames) // (2 * HALF) * 2 * HALF].reshape(-1, 2 * HALF, MELS)
    batch = torch.stack(windows)
    _, kept = model.run(batch[:, :HALF])
    expected, _ = model.run(batch[:, HALF:], copy.deepcopy(kept))
    for code, metric in CODES:
        cache = copy.deepcopy(kept)
        copies = recode(cache, model.live.checkpoint, code, grams.metrics(metric))
        changed, _ = model.run(batch[:, HALF:], cache)
        kl = (expected.exp() * (expected - changed)).sum(-1).mean(1).double()
        other = 100 * (expected.argmax(-1) != changed.argmax(-1)).double().mean(1)
        yield {
            "model": model.live.checkpoint.path.name,
            "seed": seed,
            "part": "audio",
            "code": code,
            "metric": metric,
            "windows": len(batch),
            "share": copies.share,
            "convolution": copies.convolution_bytes / copies.float32_bytes,
            "rank": mean_rank([copies]),
            "kl": change_of(torch.zeros_like(kl), kl),
            "other class": change_of(torch.zeros_like(other), other),
        }


def run_codes() -> None:
    parser = study_parser(__doc__, "model", "clips", results="results/snapshots.jsonl")
    options = parser.parse_args()
    model, results = Model(options.model), Rows(options.results)
    clips = [mel_frames(clip, model.weights) for clip in read_clips(options.clips).values()]
    for seed in (0, 1):
        for row in compare(model, clips, seed):
            results.add(row)


def cell(figures: list[list[float]], scale: float, digits: int) -> str:
    """Mean over samples of clips, with the lowest and highest end of their intervals."""
    estimates, lows, highs = zip(*figures, strict=True)
    numbers = (mean(estimates), min(lows), max(highs))
    estimate, low, high = (f"{scale * number:.{digits}f}" for number in numbers)
    return f"{estimate} ({low} to {high})"


def by_cut(rows: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """(axis, what is kept, method) -> the lines of all samples; widths by layer may differ."""
    cuts: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        kept = row.get("to") or f"{row['share']:.0%} of the keys"
        cuts.setdefault((row["axis"], kept, row["method"]), []).append(row)
    return cuts


def losses_table(rows: list[Row]) -> str:
    lines = []
    for cut, same in by_cut(rows).items():
        kl = cell([row["kl"] for row in same], 1, 4)
        lines.append([*cut, kl, cell([row["other class"] for row in same], 100, 1)])
    return table(["axis", "kept", "method", "KL, nats", "frames with another class, %"], lines)


def recovery_table(rows: list[Row], recovered: list[Row]) -> str:
    """Before and after recovery, of the samples that were recovered."""
    lines = []
    for cut, after in by_cut(recovered).items():
        samples, cells = {row["sample"] for row in after}, list[str]()
        before = [row for row in by_cut(rows)[cut] if row["sample"] in samples]
        for figure, scale, digits in (("kl", 1, 4), ("other class", 100, 1)):
            for same in (before, after):
                cells.append(cell([row[figure] for row in same], scale, digits))
        lines.append([*cut[1:], *cells])
    header = ["kept", "method", "KL, nats", "after", "frames with another class, %", "after"]
    return table(header, lines)


def draw(rows: list[Row], path: Path) -> None:
    """The frames whose class changes: by keys kept and method, and by the bytes of a state."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    points: dict[str, list[tuple[int, float]]] = {}
    bytes_kept: dict[str, list[tuple[float, float]]] = {}
    for (axis, kept, method), same in by_cut(rows).items():
        changed = 100 * mean(row["other class"][0] for row in same)
        keys, values = (int(size) for size in kept.split("x")) if "x" in kept else (0, 64)
        if axis == "keys":
            points.setdefault(method, []).append((keys, changed))
        if keys and method in DEFAULTS:
            bytes_kept.setdefault(axis, []).append((keys * values / 4096 * 100, changed))
    for method, line in points.items():
        left.plot(*zip(*line, strict=True), "o-", color=COLOURS[method], label=method)
    left.set(xlabel="keys kept of 64", ylabel="frames with another class, %", xticks=[16, 32, 48])
    for (axis, places), colour in zip(bytes_kept.items(), COLOURS.values(), strict=False):
        right.plot(*zip(*places, strict=True), "o-", color=colour, label=axis)
    right.set(xlabel="bytes of the state, %", xticks=[12.5, 25, 37.5, 50, 75])
    for panel in (left, right):
        panel.set_yscale("log")
        panel.legend(frameon=False, ncols=2, fontsize=8, loc="lower right")
        panel.invert_xaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def page(results: Path) -> None:
    rows, recovered = (read_rows(results / f"speech{kind}.jsonl") for kind in ("", "-recovery"))
    draw(rows, results / "speech.png")
    contents = {"losses": losses_table(rows), "recovery": recovery_table(rows, recovered)}
    fill(results / "speech.md", contents)


if __name__ == "__main__":
    start(page, run=run, recover=run_recovery, codes=run_codes)
