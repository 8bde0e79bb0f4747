"""Calibrates and checks models with other kernels, in a separate process because transformers binds
kernels when it imports its modelling code.

    python tests/helpers/kernel_worker.py stubs OUT [MODEL_TYPE...]    stand-ins for fla and others
    python tests/helpers/kernel_worker.py kernels OUT [MODEL_TYPE...]  the `kernels` package

Writes OUT/MODEL_TYPE.safetensors (statistics) and OUT/MODEL_TYPE-stored.safetensors (logits with
states in bfloat16), and prints the results of the checks as JSON.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers import kernel_stubs

if __name__ == "__main__" and sys.argv[1] == "stubs":
    kernel_stubs.install()

import torch
from safetensors.torch import save_file

import statetrim as st
from helpers import tiny
from statetrim.runtime.loading import load_live
from statetrim.runtime.states import StateStorage, stored_states
from statetrim.storage.text import Sequences
from statetrim.surgery.check import compare_cut

KEEP, METHODS = 7, ("drrqr", "energy")
TYPES = tuple(t for t in tiny.MODEL_TYPES if t not in ("delta_net", "gated_deltanet", "kda"))


def sequences() -> Sequences:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, tiny.VOCABULARY, (4, 48), generator=generator)
    return Sequences(ids.int(), {"text": "random ids"})


def calibrated(model: Path) -> st.Statistics:
    return st.calibrate(model, sequences(), methods=METHODS, batch_size=2, progress=False)


@torch.inference_mode()
def stored_logits(model: Path) -> torch.Tensor:
    """[rows, time, vocabulary], with the state rounded to bfloat16 after every 16 tokens."""
    live = load_live(model)
    with stored_states(live, StateStorage("bfloat16", piece=16)):
        return live.logits(sequences().ids[:2].long())


def main(kind: str, out: Path, model_types: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for model_type in model_types or TYPES:
        with tempfile.TemporaryDirectory() as folder:
            model = st.open(tiny.build(model_type, Path(folder) / "model"))
            live = load_live(model)
            module = sys.modules[type(next(iter(live.mixers.values()))).__module__]
            kernels = [getattr(module, name) for name in model.family.kernels]
            if kind == "kernels":
                assert all(isinstance(kernel, torch.nn.Module) for kernel in kernels), kernels
            statistics = calibrated(model.path)
            statistics.save(out / f"{model_type}.safetensors")
            plan = st.select(model, "drrqr", f"{KEEP}x100%", statistics=statistics)
            small = st.prune(model, plan, Path(folder) / "small", progress=False)
            checks = compare_cut(model, plan, small)
            logits = stored_logits(model.path)
            save_file({"logits": logits}, out / f"{model_type}-stored.safetensors")
            report[model_type] = {
                "sliced": checks.sliced_against_masked,
                "decoded": checks.prefill_against_decode,
                "calls": dict(kernel_stubs.CALLS),
            }
            kernel_stubs.CALLS.clear()
    return report


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])))
