"""Sensitivity: the loss when one layer alone is cut, and which layers carry recall."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..cut.shape import ChannelAxis
from ..errors import StatetrimError
from ..maths.formatting import Table, list_text
from ..maths.paired import Interval
from .samples import ChangedLayers, Samples

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
                losses = self.loss_texts(self.find(layer, axis, keep).samples)
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
            drop = self.original.recall_drop(self.find(layer, axis, keep).samples)
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
