"""Recovery of the speech model's cuts: how much comes back when they learn the original's classes.

    python studies/recover_speech.py NEOVAD --clips pyannote.audio-3.0.1.tar.gz --work WORK

`statetrim recover` distils through the head of a language model, which this model lacks, so the
loop is here: the weights of the mixers learn the classes of the original, by their KL, on eight
training clips. The two others chose the learning rate; the figures are of the four test clips. The
control is a random choice of channels with the same training. Lines that exist are not run again.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import statetrim as st
from arguments import study_parser
from compare_speech import Evaluator, Row, Sample, sequences
from speech_model import FrameModel, classes, write_frame_model
from statetrim.runtime.live import find_decoder

CHOSEN_ON = 2  # training clips
CUTS = (
    ("keys", "product", "32x64"), ("keys", "rand", "32x64"), ("keys", "product", "16x64"),
    ("keys", "rand", "16x64"), ("both", "default", "32x32"),
)  # fmt: skip


def probabilities(decoder: Any, ids: Tensor, frames: FrameModel) -> Tensor:
    """Log-probabilities [rows, time, 3] of the classes of these frames."""
    hidden = decoder(input_ids=ids.long(), use_cache=False).last_hidden_state
    return classes(hidden, frames.weights)


def distil(
    frames: FrameModel, cut: Path, ids: Tensor, steps: int, rate: float, seed: int
) -> torch.nn.Module:
    """The cut after `steps` batches of four rows of `ids`; its mixers learn the original's classes
    with Adam at a rate that falls to zero."""
    teacher, model = find_decoder(st.load(frames.path)), st.load(cut)
    for module in (*teacher.modules(), *model.modules()):
        if hasattr(module, "chunk_size"):
            module.chunk_size = 32  # no number changes; memory and time grow with its square
    with torch.no_grad():
        expected = torch.cat([probabilities(teacher, rows, frames) for rows in ids.split(8)])
    learned = []
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".mamba." in name)
        learned += [parameter] if parameter.requires_grad else []
    optimizer = torch.optim.Adam(learned, rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator, decoder = torch.Generator().manual_seed(seed), find_decoder(model)
    for _ in range(steps):
        rows = torch.randperm(len(ids), generator=generator)[:4]
        before, after = expected[rows], probabilities(decoder, ids[rows], frames)
        loss = (before.exp() * (before - after)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        schedule.step()
    return model


def main() -> None:
    parser = study_parser(
        __doc__, "model", "clips", "work", results="results/speech-recovery.jsonl", samples=3,
        steps=100, rate=1e-3,
    )  # fmt: skip
    parser.add_argument("--choose", action="store_true", help="measure on the two training clips")
    options = parser.parse_args()
    torch.set_num_threads(1)
    frames = write_frame_model(options.model, options.clips, options.work / "model")
    training = sorted(name for name in frames.clips if name.startswith("trn"))
    kept_out = sorted(set(frames.clips) - set(training))
    test = Evaluator(frames, training[-CHOSEN_ON:] if options.choose else kept_out)
    ids = sequences(frames, training[:-CHOSEN_ON]).ids
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done = [json.loads(line) for line in lines]
    for number in range(options.samples):
        sample: Sample | None = None
        work = options.work / f"sample-{number}"
        work.mkdir(exist_ok=True)
        for axis, method, to in CUTS:
            if options.choose and method == "rand":
                continue
            row: Row = {"sample": number, "axis": axis, "method": method, "to": to}
            row |= {"steps": options.steps, "rate": options.rate, "chosen on": options.choose}
            if any(row.items() <= line.items() for line in done):
                continue
            names = sorted(random.Random(number).sample(training, 5))
            sample = sample or Sample(frames, names, work)
            cut = sample.cut(row, to, number)
            model = distil(frames, cut, ids, options.steps, options.rate, number)
            row |= {"before": test.figures(cut), "after": test.figures(model)}
            print(json.dumps(row), flush=True)
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
