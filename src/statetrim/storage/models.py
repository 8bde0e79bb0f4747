"""What functions take: a model by its directory, by its hub id or opened already, and an artifact
or the file that holds it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ..errors import StatetrimError
from .checkpoint import Checkpoint, Weights, open_checkpoint

Artifact = TypeVar("Artifact")
ModelLike = str | Path | Checkpoint

open = open_checkpoint  # its public name; hides Python's own, which nothing here uses


def opened(model: ModelLike, *, weights: Weights = True) -> Checkpoint:
    return model if isinstance(model, Checkpoint) else open_checkpoint(model, weights=weights)


def all_opened(models: ModelLike | Sequence[ModelLike]) -> list[Checkpoint]:
    """One model, or several."""
    several = [models] if isinstance(models, ModelLike) else models
    return [opened(model) for model in several]


def loaded(load: Callable[[str | Path], Artifact], artifact: Artifact | str | Path) -> Artifact:
    """`artifact`, read by `load` where it is a path."""
    return load(artifact) if isinstance(artifact, str | Path) else artifact


def short_names(models: Sequence[Checkpoint]) -> list[str]:
    """The models' names, or more of their paths where two are alike."""
    paths = [model.path.resolve() for model in models]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise StatetrimError(f"{twice} is given twice; every model is evaluated once")
    names = [model.name for model in models]
    parts = 1
    while len(set(names)) < len(names):
        parts += 1
        names = ["/".join(path.parts[-parts:]) for path in paths]
    return names
