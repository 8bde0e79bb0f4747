"""Whether a model that was loaded has the weights of the files that were checked."""

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

_SAMPLES = 32  # of every tensor, spread over all of it


def verify_weights(module: Any, checkpoint: Checkpoint) -> int:
    """Refuse a model whose tensors are not those of the files, by a sample of each; says how many
    were compared. Weights that stay on disk are read from the files when they are needed."""
    compared = 0
    with ExitStack() as stack, torch.no_grad():
        files: dict[Path, int] = {}
        for shard in checkpoint.shards:
            files[shard.path] = os.open(shard.path, os.O_RDONLY)
            stack.callback(os.close, files[shard.path])
        for names, tensor in _tensors_in_memory(module, checkpoint):
            check_finite(names, tensor, checkpoint)
            tensor_infos = [checkpoint.tensors[name][1] for name in names]
            sizes = [prod(info.shape) for info in tensor_infos]
            readable = all(info.dtype in DTYPES for info in tensor_infos)
            if sum(sizes) != tensor.numel() or not tensor.numel() or not readable:
                continue
            positions = evenly_spaced(range(tensor.numel()), _SAMPLES)
            stored = _read_values(positions, names, sizes, checkpoint, files)
            loaded = tensor[torch.unravel_index(torch.tensor(positions), tensor.shape)].cpu()
            if not torch.equal(stored.to(loaded.dtype), loaded):
                raise StatetrimError(
                    f"{checkpoint.path} was loaded with other values of {names[0][:200]!r} than "
                    f"its files hold; something in its config redirects or ties it"
                )
            compared += len(names)
    return compared


def _tensors_in_memory(module: Any, checkpoint: Checkpoint) -> Iterator[tuple[list[str], Tensor]]:
    """Every tensor in memory with the names of those it was made of, in their order."""
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
        source_names = [source_name for source_name in sources if source_name in checkpoint.tensors]
        if source_names == list(sources) and all(
            _stored_shape(checkpoint, p) == sources[p].shape for p in source_names
        ):
            yield from (([source_name], sources[source_name]) for source_name in source_names)
        elif source_names == list(sources):
            yield (
                source_names,
                tensor,
            )  # one after the other, of sizes that the reversal does not know


def _stored_shape(checkpoint: Checkpoint, name: str) -> tuple[int, ...]:
    return checkpoint.tensors[name][1].shape


def check_finite(names: list[str], tensor: Tensor, checkpoint: Checkpoint) -> None:
    """Refuse a live tensor, made of those of these names, that has NaN or infinity."""
    if _is_finite(tensor):
        return
    readable_names = [name for name in names if checkpoint.tensors[name][1].dtype in DTYPES]
    bad_names = [name for name in readable_names if not _is_finite(checkpoint.tensor(name))]
    raise StatetrimError(
        f"{checkpoint.path} has NaN or infinity in {[*bad_names, *names][0][:200]!r}, so what it "
        f"computes means nothing; use sound weights"
    )


def _is_finite(tensor: Tensor) -> bool:
    """Without a copy of the tensor; packed formats are not asked."""
    if not tensor.is_floating_point() or not tensor.numel() or tensor.element_size() < 2:
        return True
    return all(bool(bound.isfinite()) for bound in torch.aminmax(tensor))  # NaN is at both ends


def _read_values(
    positions: list[int],
    names: list[str],
    sizes: list[int],
    checkpoint: Checkpoint,
    files: dict[Path, int],
) -> Tensor:
    """The numbers at `places` of the tensors laid one after the other, float64."""
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
