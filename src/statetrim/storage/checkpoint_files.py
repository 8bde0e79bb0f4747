"""Names, sizes and paths of the files of an untrusted checkpoint."""

from pathlib import Path

from ..errors import StatetrimError
from ..maths.units import MIB

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
MAX_CONFIG_BYTES = 16 * MIB
MAX_INDEX_BYTES = 24 * MIB


def path_inside(directory: Path, name: str) -> Path:
    """`directory / name`; raises StatetrimError if it is no file or a link out of the checkpoint.

    In a hub cache links may lead to the blobs of the same repository.
    """
    path, real_directory = directory / name, directory.resolve()
    root = repository_in_cache(real_directory) or real_directory
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise StatetrimError(f"{path} is missing") from None
    if not real.is_relative_to(root):
        raise StatetrimError(f"{path} leads out of the checkpoint's directory, so it is not read")
    if not real.is_file():
        raise StatetrimError(f"{path} is not a file but a pipe, a device or a directory")
    return path


def repository_in_cache(directory: Path) -> Path | None:
    """The cached repository that `directory` is a snapshot of; None outside of a cache."""
    repository = directory.parent.parent
    is_snapshot = directory.parent.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_snapshot else None


def model_name(directory: Path) -> str:
    """The hub id of a model in the hub cache, else the name of its directory."""
    repository = repository_in_cache(directory)
    if repository is None:
        return directory.name
    return repository.name.removeprefix("models--").replace("--", "/", 1)
