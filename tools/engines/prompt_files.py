"""Prompt files of engines in coded form: MLX-LM's prompt caches and llama.cpp's saved slots.

Only the bytes of states are coded; everything else in a file is kept as it is, so what is restored
differs from the engine's own file in the states alone.
"""

import json
import re
import struct
from math import prod
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from statetrim.errors import StatetrimError
from statetrim.snapshots.coding import Coded, decode, encode
from statetrim.snapshots.metric import Metrics, metric_digest
from statetrim.snapshots.stream import StateFile, StreamHeader
from statetrim.storage.checkpoint import Checkpoint
from statetrim.storage.json_file import parse_json
from statetrim.storage.safetensors_file import read_shard, save_tensors

_MLX_STATE = re.compile(r"(\d+)\.0\.1")  # the second array of a layer's ArraysCache
_METADATA, _REST = "metadata", "rest"
_GGML_FLOAT32 = 0


def code_mlx_cache(
    path: Path, model: Checkpoint, tolerance: float, metrics: Metrics | None = None
) -> StateFile:
    """A file of MLX-LM's `save_prompt_cache` with its states [batch, heads, values, keys] coded."""
    metadata = read_shard(path).metadata
    plain, coded, worst = load_file(path), dict[str, Coded](), 0.0
    for name in sorted(plain):
        match = _MLX_STATE.fullmatch(name)
        if match is None or int(match[1]) not in model.geometry.layers:
            continue
        states, layer = plain.pop(name).mT, int(match[1])
        metric = None if metrics is None else metrics[layer]
        coded[name] = encode(states, tolerance, metric)
        worst = max(worst, float(coded[name].errors.max()))  # type: ignore[union-attr]
    if not coded:
        raise StatetrimError(f"{path} holds no state of {model.path}")
    plain[_METADATA] = _as_tensor(json.dumps(metadata).encode())
    header = StreamHeader(model.digest, tolerance, worst, metric_digest(metrics))
    return StateFile(header, coded, plain)


def restore_mlx_cache(stored: StateFile, model: Checkpoint, out: Path) -> None:
    """Write the file that MLX-LM's `load_prompt_cache` reads."""
    tensors = dict(stored.plain)
    metadata = parse_json(_as_bytes(tensors.pop(_METADATA, torch.zeros(0))), "the MLX metadata")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise StatetrimError("the MLX metadata must be text")
    for name, coded in stored.coded.items():
        states = decode(coded).mT
        heads = model.geometry.num_v_heads
        tensors[name] = states.reshape(-1, heads, *states.shape[1:]).contiguous()
    save_tensors(out, tensors, metadata)


def code_llamacpp_slot(path: Path, model: Checkpoint, tolerance: float) -> StateFile:
    """A file of llama.cpp's slot save with its states coded: those of the slot, and of the
    checkpoints that the server keeps of it.

    The float32 states of all linear layers follow one another, each after its type and size, and
    are found by these; all other bytes are kept.
    """
    content, rest, coded = path.read_bytes(), bytearray(), dict[str, Coded]()
    shapes = []
    for layer in model.geometry.layers:
        geometry = model.geometry.for_layer(layer)
        shapes.append((geometry.num_v_heads, geometry.head_k_dim, geometry.head_v_dim))
    marks = [struct.pack("<iQ", _GGML_FLOAT32, 4 * prod(shape)) for shape in shapes]
    end = position = 0
    while (position := content.find(marks[0], position)) >= 0:
        places = [position]
        for mark, shape in zip(marks, shapes, strict=True):
            start = places[-1] + len(mark)
            if content[places[-1] : start] != mark or start + 4 * prod(shape) > len(content):
                break
            places.append(start + 4 * prod(shape))
        if len(places) <= len(marks):
            position += 1
            continue
        rest += content[end:position]
        for place, mark, shape in zip(places, marks, shapes, strict=False):
            taken = bytearray(content[place + len(mark) : place + len(mark) + 4 * prod(shape)])
            states = torch.frombuffer(taken, dtype=torch.float32).reshape(shape)
            coded[f"{len(rest)}.{len(coded)}"] = encode(states, tolerance)
        end = position = places[-1]
    if not coded:
        raise StatetrimError(f"{path} holds no states of {model.path}")
    rest += content[end:]
    worst = max(float(code.errors.max()) for code in coded.values() if code.errors is not None)
    header = StreamHeader(model.digest, tolerance, worst)
    return StateFile(header, coded, {_REST: _as_tensor(bytes(rest))})


def restore_llamacpp_slot(stored: StateFile, out: Path) -> None:
    """Write the file that llama.cpp's slot restore reads."""
    rest, content, position = _as_bytes(stored.plain[_REST]), bytearray(), 0
    for name in sorted(stored.coded, key=lambda name: [int(part) for part in name.split(".")]):
        place, states = int(name.partition(".")[0]), decode(stored.coded[name])
        content += rest[position:place]
        content += struct.pack("<iQ", _GGML_FLOAT32, states.nbytes) + states.numpy().tobytes()
        position = place
    out.write_bytes(content + rest[position:])


def _as_tensor(content: bytes) -> Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def _as_bytes(tensor: Tensor) -> bytes:
    return tensor.to(torch.uint8).numpy().tobytes()
