"""Check that a loaded model has the weights of the checkpoint's files."""

from collections.abc import Iterator
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
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
        files: dict[Path, Any] = {}
        for shard in checkpoint.shards:
            files[shard.path] = stack.enter_context(safe_open(shard.path, framework="pt"))
        for names, tensor in _tensors_in_memory(module, checkpoint):
            check_finite(names, tensor, checkpoint)
            entries = [checkpoint.tensors[name] for name in names]
            numel = sum(prod(info.shape) for _, info in entries)
            readable = all(info.dtype in DTYPES for _, info in entries)
            if numel != tensor.numel() or not numel or not readable:
                continue
            positions = torch.tensor(evenly_spaced(range(numel), _SAMPLES))
            stored = []
            start = 0
            for shard, info in entries:
                # A memory map, of which only the pages with samples are read.
                piece = files[shard.path].get_tensor(info.name).flatten()
                inside = (positions >= start) & (positions < start + len(piece))
                stored.append(piece[positions[inside] - start])
                start += len(piece)
            loaded = tensor[torch.unravel_index(positions, tensor.shape)].cpu()
            if not torch.equal(torch.cat(stored).to(loaded.dtype), loaded):
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
