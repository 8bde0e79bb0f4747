"""What tests ask of the real fla, in a process of its own: once fla is imported, transformers hands
CPU tensors to its GPU kernels for the rest of the process.

    fla_worker.py operators KIND FOLDER     inputs.safetensors -> outputs.safetensors
    fla_worker.py checkpoint CLASS IN OUT   load IN in fla's class, save it to OUT; prints the keys
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def operators(kind: str, folder: Path) -> None:
    inputs = load_file(folder / "inputs.safetensors")
    state = inputs.pop("initial_state")
    if kind == "delta_rule":
        from fla.ops.delta_rule.naive import delta_rule_recurrence

        heads_first = [inputs[name].transpose(1, 2) for name in ("q", "k", "v", "beta")]
        output, final = delta_rule_recurrence(*heads_first, initial_state=state)
        made = {"recurrent_output": output.transpose(1, 2), "recurrent_state": final}
    else:
        from fla.ops.gated_delta_rule import naive as gated
        from fla.ops.kda import naive as kda

        module = gated if kind == "gated_delta_rule" else kda
        made = {}
        for form in ("recurrent", "chunk"):
            rule = getattr(module, f"naive_{form}_{kind}")
            output, final = rule(**inputs, initial_state=state, output_final_state=True)
            made |= {f"{form}_output": output, f"{form}_state": final}
    save_file({name: x.contiguous() for name, x in made.items()}, folder / "outputs.safetensors")


def checkpoint(name: str, source: Path, target: Path) -> None:
    import fla.models

    model, report = getattr(fla.models, name).from_pretrained(
        source, output_loading_info=True, dtype=torch.float32
    )
    model.save_pretrained(target)
    problems = {key: sorted(map(str, value)) for key, value in report.items() if value}
    print(json.dumps({"problems": problems, "class": type(model).__module__}))


if __name__ == "__main__":
    if sys.argv[1] == "operators":
        operators(sys.argv[2], Path(sys.argv[3]))
    else:
        checkpoint(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
