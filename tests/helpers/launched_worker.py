"""One process of a torchrun launch on a machine with two pretended GPUs.

    torchrun --nproc-per-node 2 launched_worker.py MODEL SMALL TEXT OUT

Writes OUT/sums.safetensors, OUT/scores.json, and OUT/cards-RANK.json: the GPUs that this process
used for calibration and for evaluation.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers import tiny  # noqa: F401, I001  (first: hides fla, whose kernels need a real GPU)

import torch

import statetrim as st
from helpers.pretended_cuda import pretended_cuda

CALIBRATION: Any = {
    "tokens": 640, "length": 20, "batch_size": 4, "recall": 0.0, "methods": ["drrqr", "s_wanda"],
}  # fmt: skip
EVALUATION: Any = {"tasks": ["text", "mqar"], "limit": 2}


def main(model: str, small: str, text: str, out: Path) -> None:
    used = {}
    with torch.no_grad(), pretended_cuda(2) as cards:
        st.calibrate(model, text, out=out / "sums.safetensors", progress=False, **CALIBRATION)
        used["calibrate"] = sorted(cards.used - {"meta"})
        cards.used.clear()
        scores = st.evaluate([small], baseline=model, text=text, progress=False, **EVALUATION)
        used["evaluate"] = sorted(cards.used - {"meta"})
    if os.environ["RANK"] == "0":
        scores.save(out / "scores.json")
    (out / f"cards-{os.environ['RANK']}.json").write_text(json.dumps(used))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
