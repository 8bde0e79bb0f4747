"""Digest of a model: a hash of its config and of every byte of every tensor.

It does not depend on how tensors are divided into shards. Hashing takes one to two seconds per
gigabyte; digests of a large shard are cached until its size or times change.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import StatetrimError
from ..maths.units import MIB
from .json_file import read_json, write_json
from .safetensors_file import MAX_HEADER_BYTES, Shard

_BLOCK_BYTES = MIB
_MIN_CACHED_BYTES = 256 * MIB  # a smaller shard is hashed as fast as a cache file is read


def model_digest(
    config: Mapping[str, Any], shards: Sequence[Shard], family: Path | None = None
) -> str:
    """SHA-256 of the config and each tensor's name, dtype, shape and bytes; and of the file of a
    `family` outside of the package, which says what the tensors are."""
    model_hash = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    if family is not None:
        model_hash.update(family.read_bytes())
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        digests_by_shard = list(pool.map(_tensor_digests, shards))
    lines: dict[str, str] = {}
    for shard, digests in zip(shards, digests_by_shard, strict=True):
        for tensor in shard.tensors:
            digest = digests[tensor.name]
            lines[tensor.name] = f"{tensor.name} {tensor.dtype} {tensor.shape} {digest}\n"
    for name in sorted(lines):
        model_hash.update(lines[name].encode())
    return model_hash.hexdigest()


def _tensor_digests(shard: Shard) -> Mapping[str, str]:
    """Tensor name -> SHA-256 of its bytes; cached on disk for shards from 256 MiB on."""
    status = shard.path.stat()
    if status.st_size < _MIN_CACHED_BYTES:
        return _hash_tensors(shard)
    # ctime cannot be set, unlike mtime.
    key = [str(shard.path.resolve()), status.st_dev, status.st_ino, status.st_size]
    key += [status.st_mtime_ns, status.st_ctime_ns]
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    cache_file = cache_home / "statetrim" / "digests" / f"{name}.json"
    with suppress(StatetrimError):
        cached = read_json(cache_file, MAX_HEADER_BYTES)
        is_text = all(isinstance(digest, str) for digest in cached.values())
        if is_text and cached.keys() == {tensor.name for tensor in shard.tensors}:
            return cached
    digests = _hash_tensors(shard)
    with suppress(OSError):  # without a cache the shard is hashed again next time
        cache_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(cache_file, dict(digests), indent=None)
    return digests


def _hash_tensors(shard: Shard) -> dict[str, str]:
    digests: dict[str, str] = {}
    buffer = memoryview(bytearray(_BLOCK_BYTES))
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
