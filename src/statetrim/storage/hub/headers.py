"""The headers of weights on the hub: a range of the first bytes of each file, not the weights."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...errors import StatetrimError
from ..safetensors_file import Shard, parse_header

_PARALLEL_REQUESTS = 8  # requests


def remote_shards(
    repo: str, commit: str | None, names: Sequence[str], directory: Path
) -> tuple[Shard, ...]:
    """Their tensors, checked like those of files that are here; `home` is where they would be."""
    with ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
        return tuple(
            pool.map(lambda name: _read_remote_shard(repo, commit, name, directory), names)
        )


def _read_remote_shard(repo: str, commit: str | None, name: str, directory: Path) -> Shard:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        metadata = HfApi().parse_safetensors_file_metadata(repo, name, revision=commit)
        header = {
            tensor_name: {
                "dtype": entry.dtype,
                "shape": entry.shape,
                "data_offsets": [*entry.data_offsets],
            }
            for tensor_name, entry in metadata.tensors.items()
        }
    except (SafetensorsParsingError, AttributeError, LookupError, TypeError, RecursionError):
        raise StatetrimError(f"the header of {name} of {repo} is not one of safetensors") from None
    return Shard(directory / name, {}, parse_header(name, header, 0))
