"""A file of coded states: a safetensors file whose metadata is a checked header.

A coded tensor is stored as its bytes; other tensors, such as a KV cache, as they are.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ..artifacts.record import as_fields, check_header, header, parse_record
from ..errors import StatetrimError, errors_of
from ..storage.json_file import parse_json
from ..storage.safetensors_file import TensorInfo, read_shard, save_tensors
from .coding import MAX_NUMBERS, Coded

_METADATA = "statetrim"
MAX_BATCH = 4096
_MAX_ENTRIES = 2**16
_MAX_EXPANSION = 1024  # float32 bytes of states per byte of a file; rank one in 8 bits is below it


@dataclass(frozen=True)
class StreamHeader:
    """What a file of coded states says about itself."""

    model: str  # digest
    tolerance: float
    worst_error: float  # relative, over all heads of all states, in the metric
    metric: str | None = None  # digest
    batch: int = 1
    shapes: dict[str, list[int]] = field(default_factory=dict)
    """Coded tensor -> [heads, keys, values]."""
    counters: dict[str, int] = field(default_factory=dict)
    checksum: str = ""

    def validate(self) -> None:
        """Raise ValueError for sizes that no state has, and for errors above the tolerance."""
        if not 0 <= self.worst_error <= self.tolerance < 1:
            raise ValueError("worst_error: it must lie between 0 and the tolerance, below 1")
        if len(self.shapes) + len(self.counters) > _MAX_ENTRIES:
            raise ValueError(f"shapes: more than {_MAX_ENTRIES} entries")
        for name, shape in self.shapes.items():
            if len(shape) != 3 or min(shape) < 1 or prod(shape) > MAX_NUMBERS:
                raise ValueError(f"shapes: {name[:80]!r} is not a shape of states")
        if not 1 <= self.batch <= MAX_BATCH:
            raise ValueError(f"batch: 1 to {MAX_BATCH} sequences are expected")
        if any(not 0 <= count < 2**31 for count in self.counters.values()):
            raise ValueError("counters: a count is negative or too large")


@dataclass(frozen=True, eq=False)
class StateFile:
    """Coded and plain tensors by name, with their header."""

    header: StreamHeader
    coded: Mapping[str, Coded]
    plain: Mapping[str, Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What the file holds, on the CPU."""
        tensors = {name: coded.payload for name, coded in self.coded.items()}
        return tensors | {name: tensor.contiguous().cpu() for name, tensor in self.plain.items()}

    def save(self, path: str | Path) -> None:
        """Write the file atomically, replacing an existing one."""
        tensors = self.tensors
        shapes = {name: [*coded.shape] for name, coded in self.coded.items()}
        _check_expansion(shapes, self.nbytes, path)
        stored = replace(self.header, shapes=shapes, checksum=checksum(tensors))
        text = json.dumps({**header("states"), **as_fields(stored)})
        save_tensors(Path(path), tensors, {_METADATA: text})

    @staticmethod
    def load(path: str | Path) -> "StateFile":
        """Read a file of `save`; refuses one that is damaged, not complete or of another kind. The
        bytes of a coded tensor are checked when it is decoded."""
        return Contents.read(path).load()


@dataclass(frozen=True, eq=False)
class Contents:
    """What a file of coded states says that it holds: nothing but its header has been read."""

    path: Path
    header: StreamHeader
    tensors: Mapping[str, TensorInfo]  # as they are stored: a coded one as bytes

    @staticmethod
    def read(path: str | Path) -> "Contents":
        """Read the header of an untrusted file; the sizes in it are those of the file's bytes."""
        path = Path(path)
        if not path.is_file():  # reading a pipe would block
            raise StatetrimError(f"{path} is missing, or not a file")
        shard = read_shard(path)  # the header fits the file, so no tensor is larger than it
        fields: dict[str, Any] = parse_json(
            shard.metadata.get(_METADATA, "{}").encode(), f"the header of {path}"
        )
        check_header(fields, "states", path)
        parsed = parse_record(fields, StreamHeader, path)
        if len(shard.tensors) > _MAX_ENTRIES:
            raise StatetrimError(f"{path} holds more than {_MAX_ENTRIES} tensors")
        tensors = {tensor.name: tensor for tensor in shard.tensors}
        for name in parsed.shapes:
            code = tensors.get(name)
            if code is None or code.dtype != "U8" or len(code.shape) != 1:
                raise StatetrimError(f"{path} holds no code of {name[:80]!r}")
        _check_expansion(parsed.shapes, shard.nbytes, path)
        return Contents(path, parsed, tensors)

    def load(self) -> StateFile:
        """Read the tensors; refuses those that do not have the header's checksum."""
        with errors_of(f"{self.path} cannot be read"):
            tensors = load_file(self.path)
        if checksum(tensors) != self.header.checksum:
            raise StatetrimError(f"{self.path} is damaged: its checksum does not fit its contents")
        coded = {}
        for name, (heads, keys, values) in self.header.shapes.items():
            coded[name] = Coded((heads, keys, values), tensors.pop(name))
        return StateFile(self.header, coded, tensors)


def _check_expansion(shapes: Mapping[str, list[int]], nbytes: int, path: str | Path) -> None:
    """Refuse states of next to no bytes, of which a small file could hold any number."""
    if 4 * sum(map(prod, shapes.values())) > _MAX_EXPANSION * nbytes:
        raise StatetrimError(f"{path} would hold too many states that are zero; no prompt does")


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, dtypes, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}:{tensor.dtype}:{list(tensor.shape)}:".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
