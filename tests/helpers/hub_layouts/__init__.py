"""Checkpoints with the tensor names, shards and config fields of hub models, and small dimensions.

LAYOUTS differ from what `save_pretrained` writes: prediction heads, vision towers, separate
experts. Their configs are the hub's, scaled down (`tests/data/hub_configs`, as public packages
mirror them). Models with a config in PUBLISHED have stock tensors and the fields that their authors
wrote.
"""

import json
from collections.abc import Callable
from pathlib import Path

from .. import tiny
from . import nemotron, qwen
from .parts import CONFIGS, Layout

LAYOUTS: dict[str, Callable[[], Layout]] = {**qwen.LAYOUTS, **nemotron.LAYOUTS}
_FOLDER = Path(__file__).parents[2] / "data" / "hub_layouts"
PUBLISHED = tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))

__all__ = ["CONFIGS", "LAYOUTS", "PUBLISHED", "build"]


def build(name: str, directory: Path) -> Path:
    """Write the model with a tokenizer of words w1 to w63 to `directory`."""
    if name in LAYOUTS:
        LAYOUTS[name]().write(directory)
    else:
        _build_stock((_FOLDER / f"{name}.json").read_text(), directory)
    tiny.write_tokenizer(directory)
    return directory


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
