"""The options of `recover`, as data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ..maths.units import token_count


@dataclass(frozen=True)
class RecoverOptions:
    """How a recovery trains; the defaults are the paper's.

    It takes about `tokens` of the text, after the first `skip`, in sequences of `length` tokens,
    `batch_size` of them a step over all processes and `micro_batch` at a time in each. LoRA of
    `rank` and `alpha` is put on every projection of the linear-attention layers (`also`: "softmax",
    "mlp"), their convolutions are trained whole. The learning rate rises for `warm_up` of all steps
    and falls to `last_learning_rate`, a tenth unless given. `control` trains the teacher itself, by
    the same data and steps: what it gains is no merit of recovery. `layerwise` repairs one mixer at
    a time against the teacher's, with weights streamed from disk; `shard` splits both models over
    the processes of a torchrun launch. `recall` is the part of the tokens that are recall sequences
    made for it, of which only the answers count; recall of held-out ones is measured on the way,
    and after `patience` such checks without a gain training stops (0: never). `layers` names the
    linear-attention layers that are trained (none: all); `whole` trains all weights of their mixers
    instead of LoRA. `device` and `dtype` are those of `load`. The training state is saved every
    `save_every` steps, and trackers named in `report_to` (of transformers' Trainer) are told of
    each.
    """

    tokens: int | str = 2**26
    length: int = 2048
    skip: int | str = 0
    rank: int = 16
    alpha: int = 32
    learning_rate: float = 1e-4
    last_learning_rate: float | None = None
    warm_up: float = 0.05
    batch_size: int = 16
    micro_batch: int | None = None
    temperature: float = 2.0
    also: Sequence[str] = ()
    mixed_precision: bool = False
    gradient_checkpointing: bool = False
    control: bool = False
    layerwise: bool = False
    shard: bool = False
    device: str | None = None
    dtype: str | None = None
    seed: int = 0
    save_every: int = 100
    report_to: Sequence[str] = ()
    recall: float = 0.0
    patience: int = 0
    layers: Sequence[int] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        for tokens in (self.tokens, self.skip):
            token_count(tokens)  # refuses what is none

    @property
    def lowest_learning_rate(self) -> float:
        last = self.last_learning_rate
        return self.learning_rate / 10 if last is None else last

    @property
    def deciding(self) -> dict[str, Any]:
        """Those that decide the result, besides models and data; a resumed run may change the
        others."""
        return {
            "rank": self.rank,
            "alpha": self.alpha,
            "learning_rate": self.learning_rate,
            "last_learning_rate": self.lowest_learning_rate,
            "warm_up": self.warm_up,
            "batch_size": self.batch_size,
            "temperature": self.temperature,
            "also": list(self.also),
            "mixed_precision": self.mixed_precision,
            "layerwise": self.layerwise,
            "seed": self.seed,
            **({"dtype": self.dtype} if self.dtype else {}),
            # Only where they are given: records made before there were any still fit.
            **({"recall": self.recall, "patience": self.patience} if self.recall else {}),
            **({"layers": sorted(set(self.layers))} if self.layers else {}),
            **({"whole": True} if self.whole else {}),
        }


class RecoverFields(TypedDict, total=False):
    """The fields of `RecoverOptions`, for those who give them one by one."""

    tokens: int | str
    length: int
    skip: int | str
    rank: int
    alpha: int
    learning_rate: float
    last_learning_rate: float | None
    warm_up: float
    batch_size: int
    micro_batch: int | None
    temperature: float
    also: Sequence[str]
    mixed_precision: bool
    gradient_checkpointing: bool
    control: bool
    layerwise: bool
    shard: bool
    device: str | None
    dtype: str | None
    seed: int
    save_every: int
    report_to: Sequence[str]
    recall: float
    patience: int
    layers: Sequence[int]
    whole: bool
