"""Where a training run is; what its progress reports."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Moment:
    """`tokens` so far, `loss` of the last step; `label` names a part of the run."""

    step: int
    steps: int
    tokens: int
    loss: float
    label: str = ""


Progress = Callable[[Moment], None]
