"""The options of `recover`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from ..maths.units import parse_token_count


@dataclass(frozen=True)
class RecoverOptions:
    """How recovery trains; the defaults are the paper's.

    Training uses about `tokens` tokens of the text, after the first `skip`, in sequences of
    `length` tokens: `batch_size` sequences per step over all processes, `micro_batch` per forward
    pass in each. LoRA adapters with `rank` and `alpha` are put on every projection of the
    linear-attention layers (`also`: "softmax", "mlp"); their convolutions are trained in full. The
    learning rate rises for the fraction `warm_up` of all steps and decays to `last_learning_rate`,
    by default a tenth.

    `control` trains the teacher itself with the same data and steps, which shows what training
    alone gains. `layerwise` trains one mixer at a time against the teacher's, with weights streamed
    from disk; `shard` shards both models over the processes of a torchrun launch. `recall` is the
    fraction of the tokens that are generated recall sequences, of which only the answers count.
    Recall on held-out sequences is measured during training, which stops after `patience` checks
    without a gain (0: never). `layers` names the linear-attention layers to train (none: all);
    `whole` trains all weights of their mixers instead of LoRA adapters.

    `device` and `dtype` are those of `load`. The training state is saved every `save_every` steps,
    and reported to the trackers in `report_to` (names of transformers' Trainer).
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
            parse_token_count(tokens)  # raises StatetrimError if it is not a number

    @property
    def final_learning_rate(self) -> float:
        """`last_learning_rate`, or its default: a tenth of the learning rate."""
        last = self.last_learning_rate
        return self.learning_rate / 10 if last is None else last

    @property
    def result_options(self) -> dict[str, Any]:
        """The options of training that change the result, as the record holds them.

        Those of the data (`tokens`, `length`, `skip`) and `control` are elsewhere in the record; a
        resumed run may change only the remaining ones.
        """
        return {
            "rank": self.rank,
            "alpha": self.alpha,
            "learning_rate": self.learning_rate,
            "last_learning_rate": self.final_learning_rate,
            "warm_up": self.warm_up,
            "batch_size": self.batch_size,
            "temperature": self.temperature,
            "also": list(self.also),
            "mixed_precision": self.mixed_precision,
            "layerwise": self.layerwise,
            "seed": self.seed,
            **({"dtype": self.dtype} if self.dtype else {}),
            # Left out by default, so that records from before these options existed still match.
            **({"recall": self.recall, "patience": self.patience} if self.recall else {}),
            **({"layers": sorted(set(self.layers))} if self.layers else {}),
            **({"whole": True} if self.whole else {}),
        }


class RecoverFields(TypedDict, total=False):
    """The fields of `RecoverOptions`, as types of `recover`'s keyword arguments."""

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
