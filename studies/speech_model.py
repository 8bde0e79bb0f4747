"""A speech model of others as an ordinary checkpoint whose tokens are frames of real audio.

neovad's Mamba-2 reads mel frames, not tokens. Here every frame of the clips is a token, and the
embedding table holds the frames after the input projection. So calibration, selection, surgery,
refit and layerwise recovery run as for any model; the head of three classes is applied here.
"""

from __future__ import annotations

import io
import json
import math
import tarfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from scipy.io import wavfile
from torch import Tensor
from torch.nn import functional

WINDOW, HOP, FFT, MELS = 400, 160, 512, 64


def mel_filters() -> Tensor:
    """Triangles [mels, frequencies] between equal steps of the HTK mel scale, 20 Hz to 8 kHz."""
    low, high = (2595 * math.log10(1 + hz / 700) for hz in (20, 8000))
    edges = 700 * (10 ** (torch.linspace(low, high, MELS + 2) / 2595) - 1)
    frequencies = torch.linspace(0, 8000, FFT // 2 + 1)
    rising = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp_min(0)


def mel_frames(path: Path | io.BytesIO, weights: dict[str, Tensor]) -> Tensor:
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


def embed(frames: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Input of the backbone, [..., hidden], from frames [..., mels]."""
    return functional.linear(frames, weights["input_proj.weight"], weights["input_proj.bias"])


def classes(hidden: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Log-probabilities [rows, time, 3] of no speech and of two speakers, from the backbone's
    output [rows, time, hidden]."""
    projected = functional.linear(hidden, weights["head.proj.weight"], weights["head.proj.bias"])
    attractors = functional.normalize(weights["head.attractors"], dim=-1)
    similar = functional.normalize(projected, dim=-1) @ attractors.T * weights["head.temp"]
    silent = weights["head.non_speech"].expand(*similar.shape[:2], 1)
    return torch.cat([silent, similar], -1).log_softmax(-1)


@dataclass(frozen=True)
class FrameModel:
    """The checkpoint whose tokens are frames, the tokens of each clip, and the head's weights."""

    path: Path
    clips: dict[str, Tensor]  # name -> token ids, int32 [frames]
    weights: dict[str, Tensor]


def write_frame_model(source: Path, sdist: Path, out: Path) -> FrameModel:
    """Write `source` (neovad) to `out`, with a token for every frame of the clips in the source
    distribution of pyannote.audio; an existing `out` is kept."""

    weights = load_file(source / "frontend_and_head.safetensors")
    frames = {name: mel_frames(clip, weights) for name, clip in read_clips(sdist).items()}
    ends = torch.tensor([len(clip) for clip in frames.values()]).cumsum(0).tolist()
    clips = {}
    for (name, clip), end in zip(frames.items(), ends, strict=True):
        clips[name] = torch.arange(end - len(clip), end, dtype=torch.int32)
    if not out.exists():
        out.mkdir(parents=True)
        config = json.loads((source / "config.json").read_text()) | {"vocab_size": ends[-1]}
        config["mamba_chunk_size"] = 32  # as exact as 256; time grows with its square
        tensors = load_file(source / "model.safetensors")
        table = embed(torch.cat(list(frames.values())), weights).contiguous()
        tensors |= {"model.embed_tokens.weight": table, "lm_head.weight": torch.zeros_like(table)}
        save_file(tensors, out / "model.safetensors", {"format": "pt"})
        (out / "config.json").write_text(json.dumps(config))
    return FrameModel(out, clips, weights)


def read_clips(sdist: Path) -> dict[str, io.BytesIO]:
    """Name -> WAV file of the labelled clips in pyannote.audio's source distribution."""
    clips = {}
    with tarfile.open(sdist) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            name = Path(member.name).stem
            is_clip = member.name.endswith(".wav") and name[:3] in ("trn", "dev", "tst")
            file = archive.extractfile(member) if is_clip and member.size < 10**7 else None
            if file is not None:
                clips[name] = io.BytesIO(file.read())
    return clips
