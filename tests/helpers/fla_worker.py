"""Runs the real fla in a separate process: `import fla` replaces classes of transformers, and they
pass CPU tensors to fla's GPU kernels. `run` does it; as a script:

    fla_worker.py build FOLDER          save a tiny checkpoint of every fla model type
    fla_worker.py load FOLDER           load each of FOLDER/cut; print key mismatches and the
        differences of some mixers from the masked ones of FOLDER/original; also of those of
        FOLDER/heads, where heads and channels are cut
    fla_worker.py operators FOLDER      run naive recurrences on tensors
    fla_worker.py pass_through FOLDER   load and save checkpoints
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import yaml
from safetensors.torch import load_file, save_file

import statetrim as st
from helpers import fla_mixers
from helpers.forker import Forker
from statetrim.artifacts.plan import Plan

_DATA = Path(__file__).parents[1] / "data"
CONFIGS: dict[str, dict[str, Any]] = yaml.safe_load((_DATA / "tiny_configs.yaml").read_text())[
    "fla"
]
KEEP = 7  # odd, so that expand_v is not exact
KEEP_VALUES = 5
NO_VALUES = {"kda", "precond_kda", "rwkv6"}


def build_or_load(command: str, directory: Path) -> dict[str, Any]:
    import fla  # noqa: F401  (registers its model types)
    from transformers import AutoConfig, AutoModelForCausalLM

    fla_mixers.install()
    report: dict[str, Any] = {}
    for model_type, fields in CONFIGS.items():
        if command == "build":
            torch.manual_seed(0)
            config = AutoConfig.for_model(model_type, **fields)
            model = AutoModelForCausalLM.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() >= 2:  # some begin as zeros
                        parameter.normal_(std=parameter[0].numel() ** -0.5)
                    else:  # some begin equal for all heads
                        parameter.add_(torch.randn_like(parameter), alpha=0.1)
            model.save_pretrained(directory / model_type, max_shard_size="30KB")
        else:
            path = directory / "cut" / model_type
            model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
            mixer = model.get_submodule("model.layers.0.attn")
            report[model_type] = {
                "class": f"{type(model).__module__}.{type(model).__name__}",
                "mismatches": {name: sorted(map(str, keys)) for name, keys in info.items() if keys},
                "head_k_dim": mixer.head_k_dim,
                "head_v_dim": mixer.head_v_dim,
            }
            cuts = [path, *directory.glob(f"heads/{model_type}")]
            if model_type in fla_mixers.TYPES:
                original = directory / "original" / model_type
                report[model_type] |= {cut.parent.name: compare(original, cut) for cut in cuts}
    return report


def compare(original: Path, cut: Path) -> dict[str, float]:
    """The differences of a cut's first mixer from the masked one of its original."""
    from transformers import AutoModelForCausalLM

    mixers = [
        AutoModelForCausalLM.from_pretrained(path).get_submodule("model.layers.0.attn")
        for path in (original, cut)
    ]
    plan = Plan.load(cut / "statetrim" / "plan.json")
    return fla_mixers.compare(mixers[0], mixers[1], plan, st.open(original).geometry)


def operators(folder: Path) -> None:
    """KIND.*.inputs.safetensors -> KIND.*.outputs.safetensors, by fla's naive functions."""
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


def pass_through(folder: Path) -> None:
    """*/ours -> */theirs, */report.json and */defaults.json, by fla's own classes."""
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


def run(forker: Forker, command: str, folder: Path) -> Any:
    """Run a command in a process that has imported fla; returns what it reports."""
    result = forker.run([__file__, command, str(folder)], script=True)
    assert result["code"] == 0, result["err"]
    return json.loads(result["out"].splitlines()[-1])


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    command, folder = sys.argv[1], Path(sys.argv[2])
    if command in ("build", "load"):
        print(json.dumps(build_or_load(command, folder)))
    else:
        print(json.dumps({"operators": operators, "pass_through": pass_through}[command](folder)))
