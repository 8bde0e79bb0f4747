"""The headers of weights on the hub: a range of the first bytes of each file, not the weights."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ...errors import StatetrimError
from ..safetensors_file import Shard, checked_tensors

_AT_ONCE = 8  # requests


def remote_shards(
    repo: str, commit: str | None, names: Sequence[str], home: Path
) -> tuple[Shard, ...]:
    """Their tensors, checked like those of files that are here; `home` is where they would be."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return tuple(pool.map(lambda name: _shard(repo, commit, name, home), names))


def _shard(repo: str, commit: str | None, name: str, home: Path) -> Shard:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import SafetensorsParsingError

    try:
        found = HfApi().parse_safetensors_file_metadata(repo, name, revision=commit)
        header = {
            tensor: {"dtype": at.dtype, "shape": at.shape, "data_offsets": [*at.data_offsets]}
            for tensor, at in found.tensors.items()
        }
    except (SafetensorsParsingError, AttributeError, LookupError, TypeError, RecursionError):
        raise StatetrimError(f"the header of {name} of {repo} is not one of safetensors") from None
    return Shard(home / name, {}, checked_tensors(name, header, 0))
