"""Runs the real fla in a separate process: once fla is imported, transformers passes CPU tensors to
fla's GPU kernels.

    fla_worker.py operators FOLDER     KIND.*.inputs.safetensors -> KIND.*.outputs.safetensors
    fla_worker.py checkpoints FOLDER   */ours -> */theirs, */report.json, */defaults.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def operators(folder: Path) -> None:
    from fla.ops.delta_rule.naive import delta_rule_recurrence
    from fla.ops.gated_delta_rule import naive as gated
    from fla.ops.kda import naive as kda

    for source in sorted(folder.glob("*.inputs.safetensors")):
        kind = source.name.split(".")[0]
        inputs = load_file(source)
        state = inputs.pop("initial_state")
        outputs = {}
        if kind == "delta_rule":
            heads_first = [inputs[name].transpose(1, 2) for name in ("q", "k", "v", "beta")]
            output, final = delta_rule_recurrence(*heads_first, initial_state=state)
            outputs = {"recurrent_output": output.transpose(1, 2), "recurrent_state": final}
        else:
            module = gated if kind == "gated_delta_rule" else kda
            for form in ("recurrent", "chunk"):
                rule = getattr(module, f"naive_{form}_{kind}")
                output, final = rule(**inputs, initial_state=state, output_final_state=True)
                outputs |= {f"{form}_output": output, f"{form}_state": final}
        target = source.with_name(source.name.replace("inputs", "outputs"))
        save_file({name: x.contiguous() for name, x in outputs.items()}, target)


def checkpoints(folder: Path) -> None:
    import fla.models  # noqa: F401  (registers its classes)
    from transformers import AutoConfig, AutoModelForCausalLM

    for model_folder in sorted(folder.iterdir()):
        model, report = AutoModelForCausalLM.from_pretrained(
            model_folder / "ours", output_loading_info=True, dtype=torch.float32
        )
        model.save_pretrained(model_folder / "theirs")
        problems = {key: sorted(map(str, value)) for key, value in report.items() if value}
        summary = {"problems": problems, "class": type(model).__module__}
        (model_folder / "report.json").write_text(json.dumps(summary))
        defaults = type(AutoConfig.from_pretrained(model_folder / "ours"))()
        (model_folder / "defaults.json").write_text(defaults.to_json_string(use_diff=False))


if __name__ == "__main__":
    if sys.argv[1] == "operators":
        operators(Path(sys.argv[2]))
    else:
        checkpoints(Path(sys.argv[2]))
