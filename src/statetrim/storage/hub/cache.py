"""Paths in the local hub cache: models--OWNER--NAME/snapshots/COMMIT."""

from pathlib import Path


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
