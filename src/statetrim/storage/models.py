"""Arguments of public functions: a model as path, hub id or checkpoint; an artifact or its file."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ..errors import StatetrimError
from .checkpoint import Checkpoint, Weights, open_checkpoint

Artifact = TypeVar("Artifact")
ModelLike = str | Path | Checkpoint


def as_checkpoint(model: ModelLike, *, weights: Weights = True) -> Checkpoint:
    """`model` itself if it is open, else opened by `open_checkpoint`."""
    return model if isinstance(model, Checkpoint) else open_checkpoint(model, weights=weights)


def as_checkpoints(models: ModelLike | Sequence[ModelLike]) -> list[Checkpoint]:
    """A list of open checkpoints, from one model or several."""
    model_list = [models] if isinstance(models, ModelLike) else models
    return [as_checkpoint(model) for model in model_list]


def load_if_path(
    load: Callable[[str | Path], Artifact], artifact: Artifact | str | Path
) -> Artifact:
    """`artifact` itself, or what `load` reads if it is a path."""
    return load(artifact) if isinstance(artifact, str | Path) else artifact


def short_names(models: Sequence[Checkpoint]) -> list[str]:
    """The models' names; if two agree, as many parts of their paths as distinguish all."""
    paths = [model.path.resolve() for model in models]
    for path in paths:
        if paths.count(path) > 1:
            raise StatetrimError(f"{path} is given twice; every model is evaluated once")
    names = [model.name for model in models]
    parts = 1
    while len(set(names)) < len(names):
        parts += 1
        names = ["/".join(path.parts[-parts:]) for path in paths]
    return names


open = open_checkpoint  # the public name `statetrim.open`; lazy imports need an attribute like it
