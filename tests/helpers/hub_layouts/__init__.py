"""Checkpoints with the tensor names, shards and config fields of hub models, and small dimensions.

They differ from what `save_pretrained` writes: prediction heads, vision towers, separate experts,
old fields. Configs of Qwen and Nemotron are the hub's, scaled down (`../shared/data/hub_configs`);
the others follow the modelling code, and are correct if transformers reports no missing tensor.
"""

from collections.abc import Callable
from pathlib import Path

from . import fla, mamba, qwen
from .parts import CONFIGS, HIDDEN, VOCABULARY, Layout, with_tokenizer

LAYOUTS: dict[str, Callable[[], Layout]] = {**qwen.LAYOUTS, **mamba.LAYOUTS, **fla.LAYOUTS}

__all__ = ["CONFIGS", "HIDDEN", "LAYOUTS", "VOCABULARY", "Layout", "build"]


def build(name: str, directory: Path) -> Path:
    """Write the layout with a tokenizer of words w1 to w63 to `directory`."""
    return with_tokenizer(LAYOUTS[name]().write(directory))
