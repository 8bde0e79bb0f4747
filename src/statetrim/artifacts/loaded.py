"""Functions take an artifact, or the file that holds it."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Artifact = TypeVar("Artifact")


def loaded(load: Callable[[str | Path], Artifact], artifact: Artifact | str | Path) -> Artifact:
    """`artifact`, read by `load` where it is a path."""
    return load(artifact) if isinstance(artifact, str | Path) else artifact
