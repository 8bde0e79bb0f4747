"""What functions take: a model by its directory, by its hub id or opened already, and an artifact
or the file that holds it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from .checkpoint import Checkpoint, open_checkpoint

Artifact = TypeVar("Artifact")
ModelLike = str | Path | Checkpoint

open = open_checkpoint  # its public name; hides Python's own, which nothing here uses


def opened(model: ModelLike) -> Checkpoint:
    return model if isinstance(model, Checkpoint) else open_checkpoint(model)


def all_opened(models: ModelLike | Sequence[ModelLike]) -> list[Checkpoint]:
    """One model, or several."""
    several = [models] if isinstance(models, ModelLike) else models
    return [opened(model) for model in several]


def loaded(load: Callable[[str | Path], Artifact], artifact: Artifact | str | Path) -> Artifact:
    """`artifact`, read by `load` where it is a path."""
    return load(artifact) if isinstance(artifact, str | Path) else artifact
