"""Shared by the layouts: random tensors, blocks, and writing a checkpoint."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .. import tiny

Tensors = dict[str, Tensor]

CONFIGS = Path(__file__).parents[2] / "data" / "hub_configs"
HIDDEN, VOCABULARY, MLP = 64, tiny.VOCABULARY, 96
NAMES = "model-{:05d}-of-{:05d}.safetensors"

_generator = torch.Generator()


@dataclass(frozen=True)
class Layout:
    config: dict[str, Any]
    tensors: Tensors
    shards: int
    names: str = NAMES
    remote_code: bool = False

    def write(self, directory: Path) -> Path:
        directory.mkdir(parents=True)
        (directory / "config.json").write_text(json.dumps(self.config, indent=2))
        (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
        names, weight_map = list(self.tensors), dict[str, str]()
        for number in range(self.shards):
            first, last = (n * len(names) // self.shards for n in (number, number + 1))
            file = self.names.format(number + 1, self.shards)
            save_file({n: self.tensors[n] for n in names[first:last]}, directory / file)
            weight_map |= dict.fromkeys(names[first:last], file)
        if set(weight_map.values()) != {"model.safetensors"}:
            size = sum(tensor.nbytes for tensor in self.tensors.values())
            index = {
                "metadata": {"total_size": size},
                "weight_map": dict(sorted(weight_map.items())),
            }
            (directory / "model.safetensors.index.json").write_text(json.dumps(index))
        if self.remote_code:
            (directory / "modeling_remote.py").write_text("raise SystemExit('remote code ran')\n")
        return directory


def hub_config(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}_config.json").read_text())
    return config


def seed() -> None:
    _generator.manual_seed(0)


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, std: float | None = None) -> Tensor:
    scale = std or (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
    return (torch.randn(*shape, generator=_generator) * scale).to(dtype)


def ones(size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.ones(size, dtype=dtype)


def matrices(prefix: str, **shapes: tuple[int, int]) -> Tensors:
    """`up_proj=(96, 64)` is a random matrix PREFIXup_proj.weight."""
    return {f"{prefix}{name}.weight": random(*shape) for name, shape in shapes.items()}


def norms(prefix: str, *names: str) -> Tensors:
    return {f"{prefix}{name}.weight": ones(HIDDEN) for name in names}


def mlp(prefix: str, width: int = MLP) -> Tensors:
    up, down = (width, HIDDEN), (HIDDEN, width)
    return matrices(prefix, gate_proj=up, up_proj=up, down_proj=down)


def attention(prefix: str, heads: int = 4, key_heads: int = 2, width: int = 16) -> Tensors:
    keys = (key_heads * width, HIDDEN)
    return matrices(
        prefix, q_proj=(heads * width, HIDDEN), k_proj=keys, v_proj=keys,
        o_proj=(HIDDEN, heads * width),
    )  # fmt: skip
