"""Checkpoints of random numbers straight from config and row tables, without any model class.

They have only the tensors with channel rows and an embedding, so they cannot run; everything that
works on files can use them.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from helpers import tiny
from statetrim.families import families, family_of
from statetrim.storage.checkpoint import Checkpoint

RELEASED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "docs" / "calculator" / "configs.json").read_text()
)
"""Configs of released models."""
HIDDEN = 16
INDEX = "model.safetensors.index.json"
_DIMS = {"hidden_size": 32, "num_hidden_layers": 2, "num_heads": 2, "vocab_size": 64}
FLA: dict[str, dict[str, Any]] = {
    "delta_net": {**_DIMS, "expand_k": 0.75, "expand_v": 1.0},
    "gated_deltanet": {**_DIMS, "head_dim": 12, "expand_v": 2.0, "num_v_heads": 4},
    "comba": {**_DIMS, "head_dim": 12, "expand_v": 2.0},
    "gated_deltaproduct": {**_DIMS, "head_dim": 12, "expand_v": 2.0, "num_householder": 2},
    "kda": {**_DIMS, "head_dim": 12, "expand_v": 1.0, "num_v_heads": 4},
    "gla": {**_DIMS, "num_heads": 4, "num_kv_heads": 2, "expand_k": 1.5, "use_short_conv": True},
}
CONFIGS = {
    name: {"model_type": name, **json.loads(json.dumps(config))}
    for name, config in (tiny.CONFIGS | FLA).items()
}


def tensors(config: dict[str, Any], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Every tensor that has channel rows, and an embedding."""
    family = family_of(config)
    geometry = family.geometry(config)
    generator = torch.Generator().manual_seed(0)
    by_name: dict[str, Tensor] = {}
    for layer in geometry.layers:
        for rows in family.channel_rows(config, geometry):
            name = f"{family.mixer_prefixes[0].format(layer=layer)}.{rows.tensor}"
            shape: tuple[int, ...] = (rows.size, HIDDEN)
            if rows.role.endswith("conv"):
                shape = (rows.size, 1, geometry.conv_width)
            elif rows.role.endswith("norm") or name.endswith("bias"):
                shape = (rows.size,)
            elif rows.dim == 1:
                shape = (HIDDEN, rows.size)
            if name not in by_name:
                by_name[name] = torch.randn(shape, generator=generator).to(dtype)
    by_name["model.embed_tokens.weight"] = torch.randn(64, HIDDEN, generator=generator).to(dtype)
    return by_name


def save(directory: Path, config: dict[str, Any], weights: dict[str, Tensor], shards: int) -> Path:
    """Distribute the weights over `shards` files; with more than one, write the index too."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    names = list(weights)
    weight_map: dict[str, str] = {}
    for number in range(shards):
        shard_names = names[number::shards]
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        file = file if shards > 1 else "model.safetensors"
        save_file({name: weights[name] for name in shard_names}, directory / file, {"format": "pt"})
        weight_map |= dict.fromkeys(shard_names, file)
    if shards > 1:
        size = sum(tensor.nbytes for tensor in weights.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (directory / INDEX).write_text(json.dumps(index))
    return directory


def build(directory: Path, model_type: str, shards: int = 2) -> Path:
    config = CONFIGS[model_type]
    return save(directory, config, tensors(config), shards)


def recorded(config: dict[str, Any]) -> Checkpoint:
    """A checkpoint of which only the config is known, which is in no file."""
    family = families()[config["model_type"]]
    return Checkpoint(Path("recorded"), config, family, family.geometry(config))


def read(path: Path) -> tuple[dict[str, Any], bytes]:
    """The JSON header and the data of a safetensors file, read without our own code."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def write(path: Path, header: Any, data: bytes, length: int | None = None) -> None:
    """Write a safetensors file with any header, valid or not, and any header length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


def iter_tensors(directory: Path) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """Yields (name, dtype and shape, bytes) of every tensor of a checkpoint."""
    for path in sorted(directory.glob("*.safetensors")):
        header, data = read(path)
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            yield name, {"dtype": entry["dtype"], "shape": entry["shape"]}, data[begin:end]
