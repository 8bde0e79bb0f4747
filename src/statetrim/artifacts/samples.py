"""Samples of text and recall of one model, and an artifact that compares changed models by them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..maths.paired import Interval, Pairs, difference_interval
from ..maths.units import MIB
from .record import Artifact, as_fields, header

_MIN_TIMES_CHANCE = 2.0  # below this multiple of chance the original does not do the task


@dataclass(frozen=True)
class Samples:
    """One model's samples: a number per window of text, and one per recall sequence."""

    nll: list[float]  # nats per token
    kl: list[float]  # from the original, nats per token
    recall: Mapping[int, list[float]]  # number of pairs -> share of right answers
    nll_by_position: list[float] = field(default_factory=list)  # see `range_ends`; mean of windows

    @property
    def recalled_pair_counts(self) -> list[int]:
        """Numbers of pairs that are recalled more than by chance; others show no loss."""
        counts = []
        for pairs, right in self.recall.items():
            if sum(right) / len(right) > _MIN_TIMES_CHANCE / pairs:
                counts.append(pairs)
        return counts

    def nll_increase(self, changed: "Samples") -> Interval:
        """Increase of NLL in nats per token, with a 95 % interval, paired by window."""
        return difference_interval([Pairs.of(self.nll, changed.nll)])

    def recall_drop(self, changed: "Samples") -> Interval | None:
        """Drop of the share of right answers, paired by sequence, over `recalled_pair_counts`;
        None if these samples recall nothing."""
        groups = []
        for pairs in self.recalled_pair_counts:
            groups.append(Pairs.of(self.recall[pairs], changed.recall[pairs]))
        return -difference_interval(groups) if groups else None


@dataclass(frozen=True)
class ChangedLayers(Artifact):
    """What text and recall lose when layers are changed, compared with the original."""

    MAX_BYTES = 256 * MIB
    INDENT = None

    original: Samples

    @property
    def sentence(self) -> str:
        """What was found, for people."""
        raise NotImplementedError

    def loss_texts(self, changed: Samples) -> tuple[str, str]:
        """Change of NLL in nats per token, and of recall in points, with 95 % intervals."""
        nll, drop = self.original.nll_increase(changed), self.original.recall_drop(changed)
        recall = "" if drop is None else f"{-100 * drop.estimate:+.1f} ± {100 * drop.margin:.1f}"
        return f"{nll.estimate:+.3f} ± {nll.margin:.3f}", recall

    def as_json(self) -> dict[str, Any]:
        return {**header(self.KIND), "finding": self.sentence, **as_fields(self)}
