"""Memory: what a model loses when layers forget, and how far back its states matter."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..maths.formatting import Table
from ..maths.paired import Interval
from .samples import ChangedLayers, Samples

HORIZON_NATS = 0.01  # a loss of text below this, 1 % of perplexity, is taken as none

MemoryKind = Literal["state", "KV cache"]


@dataclass(frozen=True)
class Forgetting:
    """Layers that forget: their states are emptied after every `every` tokens, or with 1 a token
    finds nothing but itself in the state or in the KV cache."""

    kind: MemoryKind
    layers: list[int]
    every: int
    samples: Samples

    def __str__(self) -> str:
        if self.every > 1:
            return f"all states emptied every {self.every:,} tokens"
        return f"layer {self.layers[0]}: {self.kind}" if self.is_single else f"all {self.kind}s"

    @property
    def is_single(self) -> bool:
        """Whether one layer alone forgets everything."""
        return self.every == 1 and len(self.layers) == 1


@dataclass(frozen=True)
class Memory(ChangedLayers):
    """What text and recall lose when layers forget, compared with the model as it is."""

    KIND = "memory"

    forgetting: list[Forgetting]
    positions: list[int]  # ends of the ranges of `nll_by_position`, in tokens read
    lineage: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        singles = sum(forgetting.is_single for forgetting in self.forgetting)
        return f"<Memory of {singles} layers: {self.sentence}>"

    @property
    def horizons(self) -> list[Forgetting]:
        """All states emptied, after every token or after more, from the shortest."""
        emptied = [x for x in self.forgetting if x.kind == "state" and not x.is_single]
        return sorted(emptied, key=lambda forgetting: forgetting.every)

    def table(self) -> Table:
        """A row for the model as it is, and one for each way to forget."""
        counts = self.original.recalled_pair_counts
        mean_nll = sum(self.original.nll) / len(self.original.nll)
        shares = [share for count in counts for share in self.original.recall[count]]
        recall = f"{100 * sum(shares) / len(shares):.1f}" if shares else ""
        rows = [("as it is", f"{mean_nll:.3f}", recall)]
        for forgetting in self.forgetting:
            rows.append((str(forgetting), *self.loss_texts(forgetting.samples)))
        return Table("What is lost without memory", ("without", "NLL", "recall"), rows)

    @property
    def sentence(self) -> str:
        """Where recall is, and how far back the states matter for text, for people."""
        return f"{self._recall_sentence()} {self._horizon_sentence()}".rstrip()

    def _recall_sentence(self) -> str:
        singles, totals = dict[str, Interval](), dict[str, Interval]()
        for forgetting in self.forgetting:
            drop = self.original.recall_drop(forgetting.samples)
            if drop is not None and forgetting.every == 1:
                (singles if forgetting.is_single else totals)[str(forgetting)] = drop
        if not singles:
            return "The model does not recall these sequences, so they cannot tell where recall is."
        worst = max(singles, key=lambda name: singles[name].estimate)
        lost = [
            f"{name} {100 * drop.estimate:.0f} ± {100 * drop.margin:.0f} points"
            for name, drop in ((worst, singles[worst]), *totals.items())
        ]
        return f"Recall loses most without {'; without '.join(lost)}."

    def _horizon_sentence(self) -> str:
        for forgetting in self.horizons:
            if self.original.nll_increase(forgetting.samples).high < HORIZON_NATS:
                return f"With {_emptied(forgetting)}, text loses less than {HORIZON_NATS} nats."
        if not self.horizons:
            return ""
        loss = self.original.nll_increase(self.horizons[-1].samples)
        return (
            f"With {_emptied(self.horizons[-1])}, the most that was tried, text still loses "
            f"{loss.estimate:.3f} ± {loss.margin:.3f} nats."
        )


def _emptied(horizon: Forgetting) -> str:
    return str(horizon) if horizon.every > 1 else "no memory in the states"
