"""A model as functions take it: by its directory, by its hub id, or opened already."""

from collections.abc import Sequence
from pathlib import Path

from .checkpoint import Checkpoint, open_checkpoint

ModelLike = str | Path | Checkpoint

open = open_checkpoint  # its public name; hides Python's own, which nothing here uses


def opened(model: ModelLike) -> Checkpoint:
    return model if isinstance(model, Checkpoint) else open_checkpoint(model)


def all_opened(models: ModelLike | Sequence[ModelLike]) -> list[Checkpoint]:
    """One model, or several."""
    several = [models] if isinstance(models, ModelLike) else models
    return [opened(model) for model in several]
