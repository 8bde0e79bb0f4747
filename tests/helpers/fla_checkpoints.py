"""Runs fla's own classes, in a separate process: `import fla` replaces classes of transformers.

python tests/fla_checkpoints.py build DIRECTORY     save a tiny checkpoint of every fla model type
python tests/fla_checkpoints.py load DIRECTORY      load each of DIRECTORY/cut; print, as JSON, key
    mismatches and the differences of some mixers from the masked ones of DIRECTORY/original; also
    the differences of those of DIRECTORY/heads, where heads and channels are cut
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import statetrim as st
from helpers import fla_mixers
from statetrim.artifacts.plan import Plan

_SHAPE = {
    "vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 3, "hidden_ratio": 2,
    "fuse_cross_entropy": False,
}  # fmt: skip
_HEAD_DIM = {**_SHAPE, "num_heads": 2, "head_dim": 12, "expand_v": 2.0}

CONFIGS: dict[str, dict[str, Any]] = {
    "delta_net": {**_SHAPE, "num_heads": 4, "expand_k": 1.0, "expand_v": 0.5},
    "gated_deltanet": {**_HEAD_DIM, "num_v_heads": 4},
    "kda": {**_HEAD_DIM, "num_v_heads": 4},
    "comba": {**_HEAD_DIM, "num_heads": 3, "num_v_heads": 6},
    "gated_deltaproduct": {**_HEAD_DIM, "num_householder": 3, "use_forget_gate": True},
    "gla": {**_SHAPE, "num_heads": 4, "num_kv_heads": 2, "expand_k": 1.0, "use_short_conv": True},
    "precond_gated_deltanet": {**_HEAD_DIM, "num_v_heads": 4},
    "precond_kda": {**_HEAD_DIM, "num_v_heads": 4},
    "rwkv6": {**_SHAPE, "num_heads": 4, "expand_k": 1.0, "proj_low_rank_dim": 4,
              "gate_low_rank_dim": 4},
}  # fmt: skip
KEEP = 7  # odd, so that expand_v is not exact
KEEP_VALUES = 5
NO_VALUES = {"kda", "precond_kda", "rwkv6"}


def main(command: str, directory: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    import fla  # noqa: F401  (registers its model types)
    import torch
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
    print(json.dumps(report))


def compare(original: Path, cut: Path) -> dict[str, float]:
    """The differences of a cut's first mixer from the masked one of its original."""
    from transformers import AutoModelForCausalLM

    mixers = [
        AutoModelForCausalLM.from_pretrained(path).get_submodule("model.layers.0.attn")
        for path in (original, cut)
    ]
    plan = Plan.load(cut / "statetrim" / "plan.json")
    return fla_mixers.compare(mixers[0], mixers[1], plan, st.open(original).geometry)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
