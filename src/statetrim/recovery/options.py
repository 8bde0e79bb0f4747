"""The options of `recover`, and what it does not leave to them: the course of the learning rate."""

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import option_checks as checks
from ..common_options import SKIP_HELP, TEXT_HELP, ProgressOptions, parse_names
from ..errors import StatetrimError
from ..options import as_record, changed_options, option, options, output_option
from ..runtime.placement import OneDevice

if TYPE_CHECKING:
    from ..runtime.corpus import Corpus
    from ..storage.models import ModelLike
    from ..storage.text import Sequences

NOT_LAYERWISE = ("temperature", "micro_batch", "save_every", "report_to")
"""Options that layerwise recovery does not use."""
NOT_IN_RESULT = (
    "tokens", "length", "skip", "control", "device", "micro_batch", "gradient_checkpointing",
    "shard", "save_every", "report_to",
)  # fmt: skip
"""Options of the data, and those that do not change what is learned."""

WARM_UP = 0.05  # of the steps, in which the learning rate rises
FINAL_RATE = 0.1  # of the peak, in the last step
CHECKS = 20  # during a run, in addition to the one before it


def parse_layer_numbers(text: str) -> list[int]:
    """ "0,4" -> [0, 4]."""
    names = parse_names(text)
    for name in names:
        if not name.isdecimal() or len(name) > 5:
            raise StatetrimError(f"{text[:40]!r} are not layer numbers; write them as 0,4")
    return [int(name) for name in names]


@options
class RecoverOptions(OneDevice):
    """How recovery trains; the defaults are the paper's.

    LoRA adapters are put on every projection of the linear-attention layers; their convolutions are
    trained in full. Of recall sequences only the answers count. `control` shows what training alone
    gains. `layerwise` trains each mixer against the teacher's, with weights streamed from disk.
    """

    tokens: int | str = option(
        default=2**26,
        default_text="64m",
        help="Number of tokens to train on.",
        check=checks.token_count,
    )
    length: int = option(default=2048, help="Tokens per sequence.", check=checks.at_least_one)
    skip: int | str = option(default=0, default_text="0", help=SKIP_HELP, check=checks.token_count)
    batch_size: int = option(
        default=16, help="Sequences per step, over all processes.", check=checks.at_least_one
    )
    micro_batch: int | None = option(
        default=None,
        help="Sequences per forward pass in one process; fewer need less memory.",
        check=checks.at_least_one,
    )
    rank: int = option(default=16, help="Rank of the LoRA adapters.", check=checks.at_least_one)
    alpha: int = option(default=32, help="Scale of the LoRA adapters times their rank.")
    learning_rate: float = option(default=1e-4, help="Peak learning rate; it decays to a tenth.")
    temperature: float = option(default=2.0, help="Temperature of the distillation.")
    mixed_precision: bool = option(default=False, help="Compute in bfloat16 where that is safe.")
    gradient_checkpointing: bool = option(
        default=False, help="Recompute activations: less memory, more time."
    )
    control: bool = option(
        default=False, help="Train the teacher instead with the same settings, as a control."
    )
    layerwise: bool = option(
        default=False, help="Train one mixer at a time, for models larger than memory."
    )
    shard: bool = option(default=False, help="Shard the models over torchrun's processes (FSDP2).")
    seed: int = option(
        default=0, help="Random seed of the adapters' initial values.", check=checks.seed
    )
    save_every: int = option(
        default=100, help="Steps between saved training states.", check=checks.at_least_one
    )
    report_to: Sequence[str] = option(
        default=(), help="Trackers of transformers' Trainer, such as tensorboard,wandb."
    )
    recall: float = option(
        default=0.0,
        help="Fraction of the tokens that are generated recall sequences, such as 0.5.",
        check=checks.fraction,
    )
    layers: Sequence[int] = option(
        default=(),
        help="Linear-attention layers to train, such as 0,4; by default all.",
        parse=parse_layer_numbers,
    )
    whole: bool = option(
        default=False, help="Train all weights of the mixers instead of LoRA adapters."
    )

    def check(self) -> None:
        super().check()
        if not 0 < self.learning_rate < 1:
            raise StatetrimError(
                f"a learning rate is above 0 and below 1, not {self.learning_rate}"
            )
        if not (self.alpha > 0 and self.temperature > 0):
            raise StatetrimError("alpha and temperature must be positive")
        for name in changed_options(self):
            if self.layerwise and name in NOT_LAYERWISE:
                flag = f"--{name.replace('_', '-')}"
                raise StatetrimError(f"layerwise recovery does not use {flag}; leave it out")

    @property
    def result_options(self) -> dict[str, Any]:
        """The options of training that change the result, as the record holds them; a resumed run
        may change others, except those of the data and `control`, which are elsewhere there."""
        return {n: value for n, value in as_record(self).items() if n not in NOT_IN_RESULT}


@options
class RecoverRunOptions(RecoverOptions, ProgressOptions):
    """The options of `recover`: how it trains, on what, and where the result goes."""

    text: "str | Path | Corpus | Sequences" = option(
        help=TEXT_HELP, check=checks.text_source, in_record=False
    )
    out: str | Path = output_option(help="Output directory.")
    teacher: "ModelLike | None" = option(
        default=None,
        help="The original checkpoint; without it, training uses cross-entropy only.",
        in_record=False,
    )


def warm_up_steps(steps: int) -> int:
    """The steps in which the learning rate rises, rounded up as in transformers."""
    return ceil(WARM_UP * steps)


def is_check_due(step: int, steps: int) -> bool:
    """Whether to measure after `step`: about 20 times in `steps`, and at the end."""
    return step % max(1, steps // CHECKS) == 0 or step == steps
