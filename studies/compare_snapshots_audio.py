"""Stored states by code on a Mamba-2 speech model of others, which reads mel frames.

    python studies/compare_snapshots_audio.py MODEL CLIPS --results results/snapshots-audio.jsonl

MODEL is neovad's backbone with `frontend_and_head.safetensors`, CLIPS a folder of mono WAV files of
16 kHz. The metric is calibrated on those named trn*; the others are cut into windows of 512 frames,
half of them before the copy. Changes are the KL of the three classes and the share of frames with
another class, with 95 % intervals over windows.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache

import statetrim as st
from arguments import path_parser
from compare_snapshots import DEFAULT, Grams
from speech_model import classes, embed, mel_frames
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.runtime.kernel_hooks import hook_kernels
from statetrim.runtime.live import find_decoder
from statetrim.runtime.loading import load_live
from statetrim.snapshots.snapshot import Code, recode

HALF = 256
CODES: tuple[tuple[Code, str], ...] = (
    ("int8", "none"), ("int5", "none"), ("int4", "none"), (0.02, DEFAULT), (0.05, DEFAULT),
    (0.1, DEFAULT), (0.05, "none"),
)  # fmt: skip


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


def interval(values: Tensor) -> list[float]:
    change = difference_interval([Pairs(torch.zeros_like(values), values)])
    return [round(x, 6) for x in (change.estimate, change.low, change.high)]


@torch.inference_mode()
def main() -> None:
    parser = path_parser(__doc__, "model", "clips")
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    model = Model(options.model)
    grams, windows = Grams(model.live), list[Tensor]()
    with hook_kernels(model.live, grams.add):
        for path in sorted(options.clips.glob("trn*.wav")):
            model.run(mel_frames(path, model.weights)[:1024].unsqueeze(0))
    for pattern in ("dev*.wav", "tst*.wav"):
        for path in sorted(options.clips.glob(pattern)):
            frames = mel_frames(path, model.weights)
            windows += list(
                frames[: len(frames) // (2 * HALF) * 2 * HALF].reshape(-1, 2 * HALF, 64)
            )
    batch = torch.stack(windows)
    _, kept = model.run(batch[:, :HALF])
    expected, _ = model.run(batch[:, HALF:], copy.deepcopy(kept))
    for code, metric in CODES:
        cache = copy.deepcopy(kept)
        copies = recode(cache, model.live.checkpoint, code, grams.metrics(metric))
        changed, _ = model.run(batch[:, HALF:], cache)
        kl = (expected.exp() * (expected - changed)).sum(-1).mean(1).double()
        other = (expected.argmax(-1) != changed.argmax(-1)).double().mean(1)
        row: dict[str, Any] = {
            "code": code,
            "metric": metric,
            "windows": len(batch),
            "share": copies.share,
        }
        row |= {"kl": interval(kl), "other class": interval(other)}
        with options.results.open("a") as file:
            print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
