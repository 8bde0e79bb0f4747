"""Checkpoints with the tensor names, shards and config fields of hub models, and small dimensions.

LAYOUTS (`tests/data/hub_tensors`: config, dtype and shape of each tensor) differ from what
`save_pretrained` writes: prediction heads, vision towers, separate experts. Their configs are the
hub's (CONFIGS, as public packages mirror them), scaled down. Models with a config in PUBLISHED have
stock tensors and the fields that their authors wrote.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from helpers import tiny

_DATA = Path(__file__).parents[1] / "data"
CONFIGS = _DATA / "hub_configs"
LAYOUTS = tuple(path.stem for path in sorted((_DATA / "hub_tensors").glob("*.json")))
PUBLISHED = tuple(path.stem for path in sorted((_DATA / "hub_layouts").glob("*.json")))


def build(name: str, directory: Path) -> Path:
    """Write the model with a tokenizer of words w1 to w63 to `directory`."""
    if name in LAYOUTS:
        directory.mkdir(parents=True)
        _write(json.loads((_DATA / "hub_tensors" / f"{name}.json").read_text()), directory)
    else:
        _build_stock((_DATA / "hub_layouts" / f"{name}.json").read_text(), directory)
    tiny.write_tokenizer(directory)
    return directory


def _write(layout: dict[str, Any], directory: Path) -> None:
    """Random tensors in the order and the files of the layout."""
    torch.manual_seed(0)
    tensors = {name: _random(name, *entry) for name, entry in layout["tensors"].items()}
    names, count, weight_map = list(tensors), layout["shards"], dict[str, str]()
    for number in range(count):
        first, last = (n * len(names) // count for n in (number, number + 1))
        file = layout["names"].format(number + 1, count)
        save_file({name: tensors[name] for name in names[first:last]}, directory / file)
        weight_map |= dict.fromkeys(names[first:last], file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(layout["config"], indent=2))
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    if layout["remote_code"]:
        (directory / "modeling_remote.py").write_text("raise SystemExit('remote code ran')\n")


def _random(name: str, dtype: str, *shape: int) -> torch.Tensor:
    """Norms are about 1; the others keep activations of order one."""
    std = {1: 0.1, 2: 1.0 if "embed" in name else shape[-1] ** -0.5}.get(len(shape), 0.5)
    mean = float(len(shape) == 1 and "norm" in name)
    return (mean + std * torch.randn(shape)).to(getattr(torch, dtype))


def _build_stock(config: str, directory: Path) -> None:
    """Tensors as transformers saves them, and the text of the published config."""
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = json.loads(config)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    tiny.randomize(model)
    model.bfloat16().save_pretrained(directory, max_shard_size="100KB")
    if fields["model_type"] == "olmo_hybrid":
        tiny.undo_equal_thirds(directory, fields)
    (directory / "config.json").write_text(config)
