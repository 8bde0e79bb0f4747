"""Paths of files in an untrusted checkpoint."""

from pathlib import Path

from ..errors import StatetrimError
from .hub.download import repository_in_cache


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
