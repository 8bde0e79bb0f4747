"""Runs fla's own classes, in a separate process: `import fla` replaces classes of transformers.

python tests/fla_checkpoints.py build DIRECTORY     save a tiny checkpoint of every fla model type
python tests/fla_checkpoints.py load DIRECTORY      load each of DIRECTORY/cut; print, as JSON, key
    mismatches and widths
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

_SHAPE = {
    "vocab_size": 64, "hidden_size": 48, "num_hidden_layers": 3, "hidden_ratio": 2,
    "fuse_cross_entropy": False,
}  # fmt: skip
_HEAD_DIM = {**_SHAPE, "num_heads": 2, "head_dim": 12, "expand_v": 2.0}

CONFIGS: dict[str, dict[str, Any]] = {
    "delta_net": {**_SHAPE, "num_heads": 4, "expand_k": 1.0, "expand_v": 0.5},
    "gated_deltanet": {**_HEAD_DIM, "num_v_heads": 4},
    "kda": {**_HEAD_DIM, "num_v_heads": 4},
}
KEEP = 7  # odd, so that expand_v is not exact
KEEP_VALUES = 5
NO_VALUES = {"kda"}


def main(command: str, directory: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    import fla  # noqa: F401  (registers its model types)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

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
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
