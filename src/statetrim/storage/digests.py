"""What tells two models apart: a hash of the config and of every byte of every tensor.

It is the same for the same tensors in other shards. Hashing takes one to two seconds a gigabyte;
what was found of a large shard is kept in the user's cache, until the shard's size or times change.
"""

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.units import MIB
from .json_file import read_json, write_json
from .safetensors_file import MAX_HEADER_BYTES, Shard

_FULL_PREFIX = "2:"  # before what is made here
_BLOCK_BYTES = MIB
_MIN_CACHED_BYTES = 256 * MIB  # a smaller shard is hashed again in the time that a file takes
_SAMPLE_BYTES = 4096


def model_digest(config: Mapping[str, Any], shards: Sequence[Shard]) -> str:
    """The same only for the same config and the same tensors."""
    model_hash = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        by_shard = list(pool.map(_tensor_digests, shards))
    tensor_digests = {
        name: digest for shard_digests in by_shard for name, digest in shard_digests.items()
    }
    tensors = {tensor.name: tensor for shard in shards for tensor in shard.tensors}
    for name in sorted(tensors):
        tensor = tensors[name]
        model_hash.update(f"{name} {tensor.dtype} {tensor.shape} {tensor_digests[name]}\n".encode())
    return _FULL_PREFIX + model_hash.hexdigest()


def sampled_digests(
    config: Mapping[str, Any], shards: Sequence[Shard], pruned_names: Iterable[str]
) -> tuple[str, str]:
    """What earlier artifacts name a model by: hashes of the first 4 KiB of the tensors that are
    cut, and of all."""
    tensors = {tensor.name: (shard, tensor) for shard in shards for tensor in shard.tensors}
    pruned_hash, full_hash = (
        hashlib.sha256(json.dumps(config, sort_keys=True).encode()) for _ in range(2)
    )
    samples = {}
    for name in sorted(tensors):
        shard, tensor = tensors[name]
        description = f"{name} {tensor.dtype} {tensor.shape}\n".encode()
        with shard.path.open("rb") as file:
            file.seek(tensor.start)
            samples[name] = file.read(min(_SAMPLE_BYTES, tensor.nbytes))
        pruned_hash.update(description)
        full_hash.update(description + samples[name])
    for name in sorted(pruned_names):
        pruned_hash.update(samples[name])
    return pruned_hash.hexdigest(), full_hash.hexdigest()


def is_sampled_digest(digest: Any) -> bool:
    """Whether `mark` is of the earlier kind."""
    return isinstance(digest, str) and not digest.startswith(_FULL_PREFIX)


def _tensor_digests(shard: Shard) -> Mapping[str, str]:
    status = shard.path.stat()
    if status.st_size < _MIN_CACHED_BYTES:
        return _hash_tensors(shard)
    # No program can set the time of the last change of a file's state, unlike that of its content.
    key = [str(shard.path.resolve()), status.st_dev, status.st_ino, status.st_size]
    key += [status.st_mtime_ns, status.st_ctime_ns]
    cache_file = _cache_directory() / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"
    names = [tensor.name for tensor in shard.tensors]
    with suppress(StatetrimError):
        return _check_cached(read_json(cache_file, MAX_HEADER_BYTES), names)
    digests = _hash_tensors(shard)
    with suppress(OSError):  # it is only hashed again
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache_file, dict(digests), indent=None)
    return digests


def _check_cached(stored: Mapping[str, Any], names: Collection[str]) -> Mapping[str, str]:
    if set(stored) != set(names) or not all(isinstance(value, str) for value in stored.values()):
        raise StatetrimError("another file")
    return stored


def _cache_directory() -> Path:
    cache_home = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache_home) if cache_home else Path.home() / ".cache") / "statetrim" / "digests"


def _hash_tensors(shard: Shard) -> dict[str, str]:
    """SHA-256 of every tensor's bytes."""
    digests, buffer = {}, memoryview(bytearray(_BLOCK_BYTES))
    with shard.path.open("rb", buffering=0) as file:
        for tensor in shard.tensors:
            tensor_hash, remaining = hashlib.sha256(), tensor.nbytes
            file.seek(tensor.start)
            while remaining:
                count = file.readinto(buffer[: min(remaining, _BLOCK_BYTES)])
                if not count:
                    raise StatetrimError(f"{shard.path} became shorter while it was read")
                tensor_hash.update(buffer[:count])
                remaining -= count
            digests[tensor.name] = tensor_hash.hexdigest()
    return digests
