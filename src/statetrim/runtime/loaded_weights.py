"""Check that a loaded model has the weights of the checkpoint's files."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..maths.formatting import evenly_spaced
from ..storage.checkpoint import Checkpoint
from ..storage.safetensors_file import DTYPES

_SAMPLES = 32  # values compared per tensor, evenly spaced


def verify_weights(module: Any, checkpoint: Checkpoint) -> int:
    """Compare a sample of each tensor in memory with the files; returns the number of stored
    tensors compared. Raises StatetrimError if a sample differs, or if any value is NaN or infinite.

    Skipped are tensors on `meta`, and those without stored tensors of the same total size and a
    dtype that torch can read.
    """
    compared = 0
    with ExitStack() as stack, torch.no_grad():
        files: dict[Path, int] = {}
        for shard in checkpoint.shards:
            files[shard.path] = os.open(shard.path, os.O_RDONLY)
            stack.callback(os.close, files[shard.path])
        for names, tensor in _tensors_in_memory(module, checkpoint):
            check_finite(names, tensor, checkpoint)
            sizes, readable = list[int](), True
            for name in names:
                info = checkpoint.tensors[name][1]
                sizes.append(prod(info.shape))
                readable = readable and info.dtype in DTYPES
            if sum(sizes) != tensor.numel() or not tensor.numel() or not readable:
                continue
            positions = evenly_spaced(range(tensor.numel()), _SAMPLES)
            stored = _read_values(positions, names, sizes, checkpoint, files)
            loaded = tensor[torch.unravel_index(torch.tensor(positions), tensor.shape)].cpu()
            if not torch.equal(stored.to(loaded.dtype), loaded):
                raise other_values(checkpoint, names[0])
            compared += len(names)
    return compared


def other_values(checkpoint: Checkpoint, name: str) -> StatetrimError:
    """The error of a model that does not have the values of a stored tensor."""
    return StatetrimError(
        f"{checkpoint.path} was loaded with other values of {name[:200]!r} than its files hold; "
        f"something in its config redirects or ties it"
    )


def _tensors_in_memory(module: Any, checkpoint: Checkpoint) -> Iterator[tuple[list[str], Tensor]]:
    """Tensors in memory, each with the names of the stored tensors that it holds, concatenated in
    that order. Skips those on `meta`, and those that cannot be traced to stored tensors."""
    from transformers.core_model_loading import revert_weight_conversion

    for name, tensor in module.state_dict().items():
        if tensor.is_meta:
            continue
        if name in checkpoint.tensors and _stored_shape(checkpoint, name) == tuple(tensor.shape):
            yield [name], tensor
            continue
        try:
            sources: dict[str, Tensor] = revert_weight_conversion(module, {name: tensor})
        except Exception:  # a conversion that has no reverse
            continue
        if not sources.keys() <= checkpoint.tensors.keys():
            continue
        if all(_stored_shape(checkpoint, n) == source.shape for n, source in sources.items()):
            for source_name, source in sources.items():
                yield [source_name], source
        else:  # concatenated, at sizes that the reverse conversion does not know
            yield list(sources), tensor


def _stored_shape(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    return checkpoint.tensors[name][1].shape


def check_finite(names: list[str], tensor: Tensor, checkpoint: Checkpoint) -> None:
    """Refuse a loaded tensor, made from the stored tensors `names`, that has NaN or infinity."""
    if _is_finite(tensor):
        return
    culprit = names[0]
    for name in names:
        readable = checkpoint.logical_tensors[name].dtype in DTYPES
        if readable and not _is_finite(checkpoint.tensor(name)):
            culprit = name
            break
    raise StatetrimError(
        f"{checkpoint.path} has NaN or infinity in {culprit[:200]!r}, so what it "
        f"computes means nothing; use sound weights"
    )


def _is_finite(tensor: Tensor) -> bool:
    """Whether there is no NaN or infinity; True for integers and 8-bit floats."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.element_size() < 2:
        return True
    lowest, highest = torch.aminmax(tensor)  # both are NaN if any value is
    return bool(lowest.isfinite()) and bool(highest.isfinite())


def _read_values(
    positions: list[int],
    names: list[str],
    sizes: list[int],
    checkpoint: Checkpoint,
    files: dict[Path, int],
) -> Tensor:
    """Stored values [positions], in the stored dtype, at `positions` in the concatenation of the
    flattened tensors `names`, which have `sizes` elements; `files` are open descriptors."""
    values = []
    for position in positions:
        index = 0
        while position >= sizes[index]:
            position, index = position - sizes[index], index + 1
        shard, info = checkpoint.tensors[names[index]]
        itemsize = info.nbytes // sizes[index]
        raw = bytearray(os.pread(files[shard.path], itemsize, info.start + position * itemsize))
        values.append(torch.frombuffer(raw, dtype=DTYPES[info.dtype]))
    return torch.cat(values)
