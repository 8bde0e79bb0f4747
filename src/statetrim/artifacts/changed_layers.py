"""What a model loses when layers are changed: when they forget, or when one alone is cut."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from ..cut.shape import ChannelAxis
from ..errors import StatetrimError
from ..maths.formatting import Table, list_text
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
        """Drop of the share of right answers, paired by sequence, over `recalled_pair_counts`."""
        groups = []
        for pairs in self.recalled_pair_counts:
            groups.append(Pairs.of(self.recall[pairs], changed.recall[pairs]))
        return -difference_interval(groups) if groups else None


class Changed(Protocol):
    """A model with one change, by what was measured of it."""

    @property
    def samples(self) -> Samples: ...


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

    def nll_increase(self, changed: Changed) -> Interval:
        """Increase of NLL in nats per token."""
        return self.original.nll_increase(changed.samples)

    def recall_drop(self, changed: Changed) -> Interval | None:
        """Drop of the share of right answers; None if the original does not recall."""
        return self.original.recall_drop(changed.samples)

    def loss_texts(self, changed: Changed) -> tuple[str, str]:
        """Change of NLL in nats per token, and of recall in points, with 95 % intervals."""
        nll, drop = self.nll_increase(changed), self.recall_drop(changed)
        recall = "" if drop is None else f"{-100 * drop.estimate:+.1f} ± {100 * drop.margin:.1f}"
        return f"{nll.estimate:+.3f} ± {nll.margin:.3f}", recall

    def as_json(self) -> dict[str, Any]:
        return {**header(self.KIND), "finding": self.sentence, **as_fields(self)}


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
            rows.append((str(forgetting), *self.loss_texts(forgetting)))
        return Table("What is lost without memory", ("without", "NLL", "recall"), rows)

    @property
    def sentence(self) -> str:
        """Where recall is, and how far back the states matter for text, for people."""
        return f"{self._recall_sentence()} {self._horizon_sentence()}".rstrip()

    def _recall_sentence(self) -> str:
        singles, totals = dict[str, Interval](), dict[str, Interval]()
        for forgetting in self.forgetting:
            drop = self.recall_drop(forgetting)
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
            if self.nll_increase(forgetting).high < HORIZON_NATS:
                return f"With {_emptied(forgetting)}, text loses less than {HORIZON_NATS} nats."
        if not self.horizons:
            return ""
        loss = self.nll_increase(self.horizons[-1])
        return (
            f"With {_emptied(self.horizons[-1])}, the most that was tried, text still loses "
            f"{loss.estimate:.3f} ± {loss.margin:.3f} nats."
        )


def _emptied(horizon: Forgetting) -> str:
    return str(horizon) if horizon.every > 1 else "no memory in the states"


_CARRIER_SHARE = 0.8  # layers are named until they explain this share of all recall losses


@dataclass(frozen=True)
class LayerCut:
    """One layer cut on one axis, all others unchanged."""

    layer: int
    axis: ChannelAxis
    keep: int  # channels kept in each head
    samples: Samples


@dataclass(frozen=True)
class Sensitivity(ChangedLayers):
    """The loss when each layer is cut alone at a few widths, compared with the original."""

    KIND = "sensitivity"

    cuts: list[LayerCut]
    widths: Mapping[ChannelAxis, int]  # channels per head before the cut
    lineage: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = (f"{keep} {axis} channels" for axis, keep in self.variants)
        return f"<Sensitivity of {len(self.layers)} layers, each cut to {list_text(shapes, 8)}>"

    @property
    def layers(self) -> list[int]:
        return sorted({cut.layer for cut in self.cuts})

    @property
    def variants(self) -> list[tuple[ChannelAxis, int]]:
        """Axis and width of the cuts, keys first, and the widest first."""
        variants: set[tuple[ChannelAxis, int]] = {(cut.axis, cut.keep) for cut in self.cuts}
        return sorted(variants, key=lambda variant: (variant[0], -variant[1]))

    def find(self, layer: int, axis: ChannelAxis, keep: int) -> LayerCut:
        """The cut of one layer to `keep` channels; raises StatetrimError if there is none."""
        wanted = (layer, axis, keep)
        for cut in self.cuts:
            if (cut.layer, cut.axis, cut.keep) == wanted:
                return cut
        raise StatetrimError(f"layer {layer} was not cut to {keep} {axis} channels")

    def table(self) -> Table:
        """A row for every layer and width."""
        rows = []
        for axis, keep in self.variants:
            for layer in self.layers:
                losses = self.loss_texts(self.find(layer, axis, keep))
                rows.append((str(layer), f"{keep} of {self.widths[axis]} {axis}s", *losses))
        return Table("Each layer cut alone", ("layer", "kept", "NLL", "recall"), rows)

    @property
    def sentence(self) -> str:
        """Which layers carry recall, for people: a sentence per axis."""
        if not self.original.recalled_pair_counts:
            return "The original does not recall these sequences, so they cannot tell where."
        narrowest = dict(self.variants)  # the last width of an axis is its narrowest
        return " ".join(self._axis_sentence(axis, keep) for axis, keep in narrowest.items())

    def _axis_sentence(self, axis: ChannelAxis, keep: int) -> str:
        """Which layers carry most of the significant recall losses at this width."""
        width_text = f"at {keep} of {self.widths[axis]} {axis} channels"
        drops: dict[int, Interval] = {}
        for layer in self.layers:
            drop = self.recall_drop(self.find(layer, axis, keep))
            if drop is not None and drop.low > 0:
                drops[layer] = drop
        if not drops:
            return f"No layer alone costs recall {width_text}."
        total, explained, carriers = sum(drop.estimate for drop in drops.values()), 0.0, []
        by_drop = sorted(drops, key=lambda number: -drops[number].estimate)
        for layer in by_drop:
            carriers.append(layer)
            explained += drops[layer].estimate
            if explained >= _CARRIER_SHARE * total:
                break
        worst = drops[carriers[0]]
        loss = f"{100 * worst.estimate:.0f} ± {100 * worst.margin:.0f} points"
        if len(carriers) == 1:
            others = drops[by_drop[1]].estimate if len(drops) > 1 else 0.0
            return (
                f"Recall is carried by layer {carriers[0]} {width_text}: cut alone it costs "
                f"{loss}, and any other layer at most {100 * others:.0f}."
            )
        names = ", ".join(map(str, sorted(carriers)))
        return (
            f"Recall is spread over layers {names} {width_text}: no single layer carries the loss; "
            f"the largest is that of layer {carriers[0]}, {loss}."
        )
