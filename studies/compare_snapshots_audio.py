"""Stored states by code on a Mamba-2 speech model of others, which reads mel frames.

    python studies/compare_snapshots_audio.py MODEL SDIST --results results/snapshots.jsonl

MODEL is neovad's backbone with `frontend_and_head.safetensors`, SDIST pyannote.audio's source
distribution, whose clips are read. With seed 0 the metric is calibrated on every other clip, with
seed 1 on the rest; the other clips are cut into windows of 512 frames, half of them before the
copy. Changes are the KL of the three classes and the percent of frames with another class, with
95 % intervals over windows.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache

import statetrim as st
from arguments import path_parser
from compare_snapshots import METRICS, Grams, Row, change, mean_rank
from speech_model import MELS, classes, embed, mel_frames, read_clips
from statetrim.runtime.kernel_hooks import hook_kernels
from statetrim.runtime.live import find_decoder
from statetrim.runtime.loading import load_live
from statetrim.snapshots.snapshot import Code, recode

HALF = 256
CODES: tuple[tuple[Code, str], ...] = (
    *((code, "none") for code in ("bfloat16", "int8", "int5", "int4", 0.02, 0.05, 0.1)),
    *((code, "query") for code in (0.02, 0.05, 0.1)),
    *((0.05, metric) for metric in METRICS if metric != "query"),
)


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
            "kl": change(torch.zeros_like(kl), kl),
            "other class": change(torch.zeros_like(other), other),
        }


def main() -> None:
    parser = path_parser(__doc__, "model", "sdist")
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args()
    model = Model(options.model)
    clips = [mel_frames(clip, model.weights) for clip in read_clips(options.sdist).values()]
    with options.results.open("a") as file:
        for seed in (0, 1):
            for row in compare(model, clips, seed):
                print(json.dumps(row), file=file, flush=True)


if __name__ == "__main__":
    main()
