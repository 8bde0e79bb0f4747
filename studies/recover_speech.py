"""Recovery of the speech model's cuts: how much comes back when they learn from the original.

    python studies/recover_speech.py NEOVAD --clips pyannote.audio-3.0.1.tar.gz --work WORK

`recover` distils through the head of a language model, which this model lacks, but layer by layer
it needs none: each mixer learns the output of the original's, on the ten training clips. The
figures are of the four test clips; those before recovery are in the results of `compare_speech.py`.
The control is a random choice of channels with the same training. Lines that exist are not run
again.
"""

from __future__ import annotations

import json
import random
import shutil

import torch

import statetrim as st
from arguments import study_parser
from compare_speech import Evaluator, Row, Sample, sequences
from speech_model import write_frame_model

CUTS = (("product", "32x64"), ("rand", "32x64"), ("product", "16x64"), ("rand", "16x64"))


def main() -> None:
    parser = study_parser(
        __doc__, "model", "clips", "work", results="results/speech-recovery.jsonl", samples=3,
        rate=2e-3,
    )  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(1)
    frames = write_frame_model(options.model, options.clips, options.work / "model")
    training = sorted(name for name in frames.clips if name.startswith("trn"))
    test = Evaluator(frames, sorted(set(frames.clips) - set(training)))
    lines = options.results.read_text().splitlines() if options.results.exists() else []
    done = [json.loads(line) for line in lines]
    for number in range(options.samples):
        sample: Sample | None = None
        work, out = options.work / f"sample-{number}", options.work / "recovered"
        work.mkdir(exist_ok=True)
        for method, to in CUTS:
            row: Row = {"sample": number, "axis": "keys", "method": method, "to": to}
            row |= {"rate": options.rate}
            if any(row.items() <= line.items() for line in done):
                continue
            names = sorted(random.Random(number).sample(training, 5))
            sample = sample or Sample(frames, names, work)
            shutil.rmtree(out, ignore_errors=True)
            recovered = st.recover(
                sample.cut(row, to, number), teacher=frames.path, layerwise=True, batch_size=2,
                text=sequences(frames, training), learning_rate=options.rate, out=out,
                progress=False,
            )  # fmt: skip
            row |= test.figures(recovered.path)
            print(json.dumps(row), flush=True)
            with options.results.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
