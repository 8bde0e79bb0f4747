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
from .json_file import read_object, write_object
from .safetensors_file import MOST_HEADER_BYTES, Shard

_KIND = "2:"  # before what is made here
_BLOCK_BYTES = MIB
_KEPT_BYTES = 256 * MIB  # a smaller shard is hashed again in the time that a file takes
_SAMPLE_BYTES = 4096


def digest_of(config: Mapping[str, Any], shards: Sequence[Shard]) -> str:
    """The same only for the same config and the same tensors."""
    hashed = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        found = list(pool.map(_tensor_digests, shards))
    contents = {name: content for each in found for name, content in each.items()}
    tensors = {tensor.name: tensor for shard in shards for tensor in shard.tensors}
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {tensor.shape} {contents[name]}\n".encode())
    return _KIND + hashed.hexdigest()


def sampled_digests(
    config: Mapping[str, Any], shards: Sequence[Shard], claimed: Iterable[str]
) -> tuple[str, str]:
    """What earlier artifacts name a model by: hashes of the first 4 KiB of the tensors that are
    cut, and of all."""
    found = {tensor.name: (shard, tensor) for shard in shards for tensor in shard.tensors}
    cut, whole = (hashlib.sha256(json.dumps(config, sort_keys=True).encode()) for _ in range(2))
    samples = {}
    for name in sorted(found):
        shard, tensor = found[name]
        about = f"{name} {tensor.dtype} {tensor.shape}\n".encode()
        with shard.path.open("rb") as file:
            file.seek(tensor.start)
            samples[name] = file.read(min(_SAMPLE_BYTES, tensor.nbytes))
        cut.update(about)
        whole.update(about + samples[name])
    for name in sorted(claimed):
        cut.update(samples[name])
    return cut.hexdigest(), whole.hexdigest()


def is_sampled(mark: Any) -> bool:
    """Whether `mark` is of the earlier kind."""
    return isinstance(mark, str) and not mark.startswith(_KIND)


def _tensor_digests(shard: Shard) -> Mapping[str, str]:
    state = shard.path.stat()
    if state.st_size < _KEPT_BYTES:
        return _hashed(shard)
    # No program can set the time of the last change of a file's state, unlike that of its content.
    key = [str(shard.path.resolve()), state.st_dev, state.st_ino, state.st_size]
    key += [state.st_mtime_ns, state.st_ctime_ns]
    kept = _cache() / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"
    names = [tensor.name for tensor in shard.tensors]
    with suppress(StatetrimError):
        return _known(read_object(kept, MOST_HEADER_BYTES), names)
    found = _hashed(shard)
    with suppress(OSError):  # it is only hashed again
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_object(kept, dict(found), indent=None)
    return found


def _known(stored: Mapping[str, Any], names: Collection[str]) -> Mapping[str, str]:
    if set(stored) != set(names) or not all(isinstance(value, str) for value in stored.values()):
        raise StatetrimError("another file")
    return stored


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "statetrim" / "digests"


def _hashed(shard: Shard) -> dict[str, str]:
    """SHA-256 of every tensor's bytes."""
    found, buffer = {}, memoryview(bytearray(_BLOCK_BYTES))
    with shard.path.open("rb", buffering=0) as file:
        for tensor in shard.tensors:
            hashed, left = hashlib.sha256(), tensor.nbytes
            file.seek(tensor.start)
            while left:
                count = file.readinto(buffer[: min(left, _BLOCK_BYTES)])
                if not count:
                    raise StatetrimError(f"{shard.path} became shorter while it was read")
                hashed.update(buffer[:count])
                left -= count
            found[tensor.name] = hashed.hexdigest()
    return found
