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


def as_checkpoint(model: ModelLike, *, weights: Weights = True) -> Checkpoint:
    return model if isinstance(model, Checkpoint) else open_checkpoint(model, weights=weights)


def as_checkpoints(models: ModelLike | Sequence[ModelLike]) -> list[Checkpoint]:
    """One model, or several."""
    model_list = [models] if isinstance(models, ModelLike) else models
    return [as_checkpoint(model) for model in model_list]


def load_if_path(
    load: Callable[[str | Path], Artifact], artifact: Artifact | str | Path
) -> Artifact:
    """`artifact`, read by `load` where it is a path."""
    return load(artifact) if isinstance(artifact, str | Path) else artifact


def short_names(models: Sequence[Checkpoint]) -> list[str]:
    """The models' names, or more of their paths where two are alike."""
    paths = [model.path.resolve() for model in models]
    if len(set(paths)) < len(paths):
        duplicate = next(path for path in paths if paths.count(path) > 1)
        raise StatetrimError(f"{duplicate} is given twice; every model is evaluated once")
    names = [model.name for model in models]
    parts = 1
    while len(set(names)) < len(names):
        parts += 1
        names = ["/".join(path.parts[-parts:]) for path in paths]
    return names
