"""Runs fla's own classes. A process of its own: `import fla` replaces classes of transformers.

python tests/fla_checkpoints.py build DIRECTORY     save a tiny checkpoint of every fla model type
python tests/fla_checkpoints.py load DIRECTORY      load each again, print key mismatches as JSON
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

_SHAPE = {
    "vocab_size": 64,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "hidden_ratio": 2,
    "fuse_cross_entropy": False,
}
_HEAD_DIM = {**_SHAPE, "num_heads": 2, "head_dim": 12, "expand_v": 2.0}
_SOFTMAX_LAYER = {"layers": [1], "num_heads": 4}

CONFIGS: dict[str, dict[str, Any]] = {
    "delta_net": {**_SHAPE, "num_heads": 4, "expand_k": 1.0, "expand_v": 0.5},
    "gated_deltanet": {**_HEAD_DIM, "num_v_heads": 4},
    "kda": {**_HEAD_DIM, "num_v_heads": 4},
    "comba": {**_HEAD_DIM, "num_v_heads": 4},
    "gated_deltaproduct": {**_HEAD_DIM, "num_householder": 3, "use_forget_gate": True},
    "gla": {**_SHAPE, "num_heads": 4, "num_kv_heads": 2, "expand_k": 1.0, "use_short_conv": True},
}
KEEP = 7  # truncation of expand_v and odd widths must not matter
KEEP_VALUES = 5
NO_VALUES = {"kda"}


def main(command: str, directory: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    import fla  # noqa: F401  (registers its model types)
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    report = {}
    for model_type, fields in CONFIGS.items():
        if command == "build":
            torch.manual_seed(0)
            config = AutoConfig.for_model(model_type, **fields)
            model = AutoModelForCausalLM.from_config(config)
            model.save_pretrained(directory / model_type, max_shard_size="30KB")
        else:
            path = directory / model_type
            model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
            mixer = model.model.layers[0].attn
            report[model_type] = {
                "class": f"{type(model).__module__}.{type(model).__name__}",
                "mismatches": {name: sorted(map(str, keys)) for name, keys in info.items() if keys},
                "head_k_dim": mixer.head_k_dim,
                "head_v_dim": mixer.head_v_dim,
            }
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
