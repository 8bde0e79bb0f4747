"""Read the headers of weight files on the hub without downloading the weights."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import StatetrimError
from ..safetensors_file import Shard, parse_header

_PARALLEL_REQUESTS = 8


def remote_shards(
    repo: str, commit: str | None, names: Sequence[str], directory: Path
) -> tuple[Shard, ...]:
    """Headers of the files `names` of a repository, read from the hub; paths lie in `directory`.

    Raises StatetrimError for a malformed header. The shards have no metadata, and byte offsets
    count from the end of the header, so tensors cannot be read by them.
    """
    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        read = partial(_read_remote_shard, repo, commit, directory)
        return tuple(pool.map(read, names))


def _read_remote_shard(repo: str, commit: str | None, directory: Path, name: str) -> Shard:
    """Header of one file on the hub; raises StatetrimError if it is malformed."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        metadata = HfApi().parse_safetensors_file_metadata(repo, name, revision=commit)
        header: dict[str, Any] = {}
        for tensor_name, entry in metadata.tensors.items():
            offsets = [*entry.data_offsets]
            header[tensor_name] = {
                "dtype": entry.dtype,
                "shape": entry.shape,
                "data_offsets": offsets,
            }
    except (SafetensorsParsingError, AttributeError, LookupError, TypeError, RecursionError):
        raise StatetrimError(f"the header of {name} of {repo} is not one of safetensors") from None
    return Shard(directory / name, {}, parse_header(name, header, 0))
