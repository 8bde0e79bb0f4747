"""Where the hub's cache keeps a model: models--OWNER--NAME/snapshots/COMMIT."""

from pathlib import Path


def repository_in_cache(directory: Path) -> Path | None:
    """The cached repository of which `directory` is a snapshot; None outside of a cache."""
    repository = directory.parent.parent
    is_snapshot = directory.parent.name == "snapshots" and repository.name.startswith("models--")
    return repository if is_snapshot else None


def model_name(directory: Path) -> str:
    """What people call the model there: its hub id in a hub's cache, else the directory's name."""
    repository = repository_in_cache(directory)
    if repository is None:
        return directory.name
    return repository.name.removeprefix("models--").replace("--", "/", 1)
