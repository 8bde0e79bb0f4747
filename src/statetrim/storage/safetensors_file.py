"""One safetensors file: a strict header reader, and a writer that drops rows and copies the rest.

safetensors' own reader hides byte offsets, which are needed to copy unchanged bytes from file to
file inside the kernel. So the header is read here, and checked before anything relies on it.
"""

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ..errors import StatetrimError
from ..maths.units import MIB
from ..progress import Advance
from .atomic import atomic_write
from .json_file import parse_json

MAX_HEADER_BYTES = 24 * MIB
MAX_DIMENSIONS = 16
BLOCK_BYTES = 32 * MIB
"""How much of an edited tensor is in memory at a time."""
COPY_BYTES = 256 * MIB
"""How much the kernel copies between two reports of progress."""

DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""The dtypes whose rows can be pruned; others hold packed or scaled values."""

STORED_DTYPES = DTYPES | {
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I32": torch.int32,
    "I64": torch.int64,
}
"""The dtypes that can be read."""

_COPY_UNSUPPORTED = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True)
class TensorInfo:
    """Header entry of a tensor; `start` is its byte offset in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class Shard:
    """A safetensors file whose header has been checked; tensors in the order of their bytes."""

    path: Path
    metadata: dict[str, str]
    tensors: tuple[TensorInfo, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, without the header."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, eq=False)
class TensorEdit:
    """How one tensor changes when its shard is rewritten: each column is multiplied by its factor,
    then masks are applied, then the fill value."""

    masks: Mapping[int, Tensor]  # dimension -> bool [size]: which rows or columns stay
    column_factors: Tensor | None = None  # float64 [columns]
    fill_value: float | None = None  # replaces all entries that stay
    replacement: Tensor | None = None  # edited instead of the tensor that the file holds
    split_heads: int = 0  # the result is reshaped to [split_heads, ...] if not 0

    def result_shape(self, stored_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape after the edit of a tensor that is stored with `stored_shape`."""
        shape = list(stored_shape if self.replacement is None else self.replacement.shape)
        for dim, mask in self.masks.items():
            shape[dim] = int(mask.sum())
        if self.split_heads:
            return self.split_heads, prod(shape) // self.split_heads
        return tuple(shape)


@dataclass(frozen=True, eq=False)
class ComputedTensor:
    """A tensor that takes the place of a stored one of the same dtype, made while it is written."""

    shape: tuple[int, ...]
    blocks: Callable[[], Iterator[Tensor]]
    """Its values in order, in tensors whose bytes are written one after the other."""

    def result_shape(self, stored_shape: Sequence[int]) -> tuple[int, ...]:
        """Its own shape, whatever that of the stored tensor."""
        return self.shape


Edit = TensorEdit | ComputedTensor


def read_shard(path: Path) -> Shard:
    """Read the header of a safetensors file; raises StatetrimError unless it fits the file."""
    try:
        with path.open("rb") as file:
            total = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if total < 8 or length > total - 8 or length > MAX_HEADER_BYTES:
                raise StatetrimError(
                    f"{path.name} is not a safetensors file: its first 8 bytes announce a header "
                    f"of {length} bytes in a file of {total}"
                )
            text = file.read(length)
    except OSError as error:
        raise StatetrimError(f"{path} cannot be read: {error.strerror}") from None
    header = parse_json(text, f"the header of {path.name}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise StatetrimError(f"the header of {path.name} has metadata that is not text")
    shard = Shard(path, metadata, parse_header(path.name, header, 8 + length))
    end = 8 + length + shard.nbytes
    if end != total:
        raise StatetrimError(
            f"{path.name} is damaged or not complete: its header describes {end} bytes, "
            f"the file has {total}"
        )
    return shard


def parse_header(file: str, header: Mapping[str, Any], data_start: int) -> tuple[TensorInfo, ...]:
    """The tensors of a header in the order of their bytes, which begin at offset `data_start`."""
    tensors = [_parse_entry(file, data_start, name, entry) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.nbytes))
    end = data_start
    for tensor in tensors:
        if tensor.start != end:
            raise StatetrimError(
                f"{file} is damaged: the bytes of {tensor.name[:200]!r} overlap others or "
                f"leave a gap"
            )
        end += tensor.nbytes
    return tuple(tensors)


def _parse_entry(file: str, data_start: int, name: str, entry: Any) -> TensorInfo:
    def entry_error(problem: str) -> StatetrimError:
        return StatetrimError(f"the header of {file} gives {name[:200]!r} {problem}")

    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise entry_error("an entry that is not dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise entry_error(f"the unknown dtype {str(dtype)[:40]!r}")
    if not _is_list_of_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise entry_error("a shape that is not a short list of sizes")
    if not _is_list_of_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise entry_error("data_offsets that are not a begin and an end")
    nbytes = offsets[1] - offsets[0]
    if prod(shape) * DTYPE_BITS[dtype] != nbytes * 8:
        raise entry_error(f"{nbytes} bytes, which do not fit shape {shape} of {dtype}")
    return TensorInfo(name, dtype, tuple(shape), data_start + offsets[0], nbytes)


def _is_list_of_sizes(values: Any) -> bool:
    """Whether `values` is a list of int from 0 to 2^63 - 1; bool does not count."""
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file atomically, replacing an existing one."""
    with atomic_write(path) as scratch:
        write_tensors_in_place(scratch, tensors, metadata)


def write_tensors_in_place(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file in place, not atomically, for directories published as a whole."""
    try:
        save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    except SafetensorError as error:  # it wraps errors of the system
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        number = int(code.group(1))
        raise OSError(number, os.strerror(number), str(path)) from None


def read_tensor(file: BufferedReader, tensor: TensorInfo) -> Tensor:
    """Read a tensor in its stored dtype, one of `STORED_DTYPES`, from an open shard."""
    return next(_read_blocks(file, tensor, tensor.nbytes), torch.empty(0)).reshape(tensor.shape)


def read_row_bytes(file: BufferedReader, tensor: TensorInfo, start: int, stop: int) -> Tensor:
    """The bytes of rows `start` to `stop` of a tensor, uint8 [rows, bytes]."""
    row_bytes = tensor.nbytes // max(1, tensor.shape[0])
    shape, first = (stop - start, row_bytes), tensor.start + start * row_bytes
    return read_tensor(file, TensorInfo(tensor.name, "U8", shape, first, prod(shape)))


def tensors_after(shard: Shard, edits: Mapping[str, Edit]) -> list[TensorInfo]:
    """Header entries of the file that `rewrite_shard` writes; `start` is still that in `shard`."""
    after = list(shard.tensors)
    for number, tensor in enumerate(after):
        if tensor.name in edits:
            shape = edits[tensor.name].result_shape(tensor.shape)
            nbytes = prod(shape) * DTYPE_BITS[tensor.dtype] // 8
            after[number] = replace(tensor, shape=shape, nbytes=nbytes)
    return after


def rewrite_shard(
    shard: Shard, target: BinaryIO, edits: Mapping[str, Edit], advance: Advance
) -> None:
    """Write `shard` to `target` with `edits` (tensor name -> edit) applied.

    `advance` gets the bytes of tensors written, without the header.
    """
    header = _encode_header(shard.metadata, tensors_after(shard, edits))
    target.write(header)
    with shard.path.open("rb") as source:
        for is_edited, group in groupby(shard.tensors, key=lambda tensor: tensor.name in edits):
            tensors = list(group)
            if not is_edited:  # adjacent in the file: one copy for all of them
                start, end = tensors[0].start, tensors[-1].start + tensors[-1].nbytes
                _copy_bytes(source, target, start, end - start, advance)
                continue
            for tensor in tensors:
                for block in _edited_blocks(source, tensor, edits[tensor.name]):
                    target.write(block)
                    advance(len(block))


def patch_shard(
    shard: Shard,
    target: BinaryIO,
    replacements: Mapping[str, Callable[[Tensor], Tensor]],
    advance: Advance,
) -> None:
    """Copy `shard` to `target` and overwrite some tensors, keeping shapes and dtypes.

    `replacements` maps a tensor's name to a function of its old value, whose result is converted to
    the stored dtype. One tensor is in memory at a time. `advance` gets the bytes copied.
    """
    with shard.path.open("rb") as source:
        _copy_bytes(source, target, 0, os.fstat(source.fileno()).st_size, advance)
        for tensor in shard.tensors:
            if tensor.name in replacements:
                before = read_tensor(source, tensor)
                after = replacements[tensor.name](before).to(before.dtype)
                assert after.shape == before.shape, tensor.name
                target.seek(tensor.start)
                target.write(tensor_bytes(after))


def tensor_bytes(tensor: Tensor) -> bytearray:
    """The bytes of a tensor's values in order, without numpy, which torch does not install."""
    buffer = bytearray(tensor.numel() * tensor.element_size())
    if buffer:
        torch.frombuffer(buffer, dtype=tensor.dtype).reshape(tensor.shape).copy_(tensor)
    return buffer


def _encode_header(metadata: Mapping[str, str], tensors: Sequence[TensorInfo]) -> bytes:
    """Length and JSON of a header, padded with spaces to a multiple of 8 bytes.

    Offsets follow from the order and `nbytes` of `tensors`; `start` is ignored.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for tensor in tensors:
        offsets = [start, start + tensor.nbytes]
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": offsets,
        }
        start += tensor.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _read_blocks(file: BufferedReader, tensor: TensorInfo, block_bytes: int) -> Iterator[Tensor]:
    """A tensor's rows [rows, ...] in blocks of at most `block_bytes`, or of one row."""
    count = tensor.shape[0] if tensor.shape else 1
    row_bytes = max(1, tensor.nbytes // max(1, count))
    step = max(1, block_bytes // row_bytes) * row_bytes
    file.seek(tensor.start)
    for done in range(0, tensor.nbytes, step):
        buffer = bytearray(min(step, tensor.nbytes - done))
        if file.readinto(buffer) != len(buffer):
            raise StatetrimError(f"{file.name} became shorter while it was read")
        values = torch.frombuffer(buffer, dtype=STORED_DTYPES[tensor.dtype])
        yield values.reshape(-1, *tensor.shape[1:])


def _edited_blocks(file: BufferedReader, tensor: TensorInfo, edit: Edit) -> Iterator[bytearray]:
    """The bytes of a tensor after `edit`; a replacement is one block."""
    if isinstance(edit, ComputedTensor):
        yield from map(tensor_bytes, edit.blocks())
        return
    if edit.replacement is None:
        blocks = _read_blocks(file, tensor, BLOCK_BYTES)
    else:
        blocks = iter([edit.replacement])
    row = 0
    for block in blocks:
        kept = block
        if edit.column_factors is not None:
            kept = (block.double() * edit.column_factors).to(block.dtype)
        for dim, mask in edit.masks.items():
            block_mask = mask[row : row + len(block)] if dim == 0 else mask
            kept = kept.index_select(dim, block_mask.nonzero().squeeze(1))
        row += len(block)
        if edit.fill_value is not None:
            kept = torch.full_like(kept, edit.fill_value)
        yield tensor_bytes(kept)


def _copy_bytes(
    source: BinaryIO, target: BinaryIO, start: int, count: int, advance: Advance
) -> None:
    """Write `count` bytes of `source` from offset `start` to `target`, at its position."""
    target.flush()
    while count:
        step = min(count, COPY_BYTES)
        copied = _copy_range(source.fileno(), target.fileno(), step, start)
        if copied == 0:
            raise StatetrimError(f"{source.name} became shorter while it was read")
        start, count = start + copied, count - copied
        advance(copied)


def _copy_range(source: int, target: int, count: int, start: int) -> int:
    """Copy up to `count` bytes between descriptors, inside the kernel where the system can; returns
    their number, 0 at the end of the source."""
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, count, offset_src=start)
        except OSError as error:
            if error.errno not in _COPY_UNSUPPORTED:
                raise
    return os.write(target, os.pread(source, min(count, BLOCK_BYTES), start))
