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
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from scipy.io import wavfile
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache

import statetrim as st
from arguments import path_parser
from compare_snapshots import DEFAULT, Grams
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.runtime.kernel_hooks import hook_kernels
from statetrim.runtime.live import find_decoder
from statetrim.runtime.loading import load_live
from statetrim.snapshots.copies import Code, recode

WINDOW, HOP, FFT, MELS, HALF = 400, 160, 512, 64, 256
CODES: tuple[tuple[Code, str], ...] = (
    ("int8", "none"), ("int5", "none"), ("int4", "none"), (0.02, DEFAULT), (0.05, DEFAULT),
    (0.1, DEFAULT), (0.05, "none"),
)  # fmt: skip


def mel_filters() -> Tensor:
    """Triangles [mels, frequencies] between equal steps of the HTK mel scale, 20 Hz to 8 kHz."""
    low, high = (2595 * math.log10(1 + hz / 700) for hz in (20, 8000))
    edges = 700 * (10 ** (torch.linspace(low, high, MELS + 2) / 2595) - 1)
    frequencies = torch.linspace(0, 8000, FFT // 2 + 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp_min(0)


def mel_frames(path: Path, weights: dict[str, Tensor]) -> Tensor:
    """Frames [time, mels] after per-channel energy normalisation with a smoother of 0.4 s."""
    rate, numbers = wavfile.read(path)
    samples = torch.tensor(numbers).float() / (1 if numbers.dtype.kind == "f" else 32768)
    assert rate == 16000 and samples.dim() == 1, path
    frames = functional.pad(samples, (WINDOW - HOP, 0)).unfold(0, WINDOW, HOP)
    spectrum = torch.fft.rfft(frames * torch.hann_window(WINDOW), n=FFT).abs().square()
    mel = spectrum @ mel_filters().T
    steps = 0.4 * 16000 / HOP
    share = (math.sqrt(1 + 4 * steps**2) - 1) / (2 * steps**2)
    smooth, smoothed = mel[0], list[Tensor]()
    for frame in mel:
        smooth = (1 - share) * smooth + share * frame
        smoothed.append(smooth)
    gain, bias, power = (weights[f"frontend.{name}"] for name in ("gain", "bias", "power"))
    normalised = mel * (1e-6 + torch.stack(smoothed)) ** -gain
    compressed: Tensor = (normalised + bias) ** power - bias**power
    return compressed


class Model:
    """The backbone with its input projection and its head of three classes."""

    def __init__(self, path: Path) -> None:
        self.weights = load_file(path / "frontend_and_head.safetensors")
        self.live = load_live(st.open(path))
        self.decoder = find_decoder(self.live.module)

    def run(self, frames: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        """Log-probabilities [rows, time, 3] of frames [rows, time, mels], and the cache."""
        w = self.weights
        hidden = functional.linear(frames, w["input_proj.weight"], w["input_proj.bias"])
        if cache is None:
            cache = DynamicCache(config=self.decoder.config)
        # Without attention layers transformers' cache knows no length, and its mask asks for one.
        read = getattr(cache, "frames_read", 0)
        cache.get_seq_length = lambda *_, **__: read
        cache.get_mask_sizes = lambda query_length, *_, **__: (read + query_length, 0)
        outputs = self.decoder(inputs_embeds=hidden, use_cache=True, past_key_values=cache)
        cache.frames_read = read + frames.shape[1]
        last = outputs.last_hidden_state
        projected = functional.linear(last, w["head.proj.weight"], w["head.proj.bias"])
        attractors = functional.normalize(w["head.attractors"], dim=-1)
        similar = functional.normalize(projected, dim=-1) @ attractors.T * w["head.temp"]
        silent = w["head.non_speech"].expand(*similar.shape[:2], 1)
        return torch.cat([silent, similar], -1).log_softmax(-1), cache


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
