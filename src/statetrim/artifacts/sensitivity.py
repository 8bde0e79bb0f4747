"""Sensitivity: what each layer costs when it alone is cut, and where recall lives."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..geometry import Axis
from ..maths.formatting import list_text
from ..maths.paired import Interval, Pairs, difference_interval
from ..maths.units import MIB
from ..storage.json_file import read_json, write_json
from .header import check_header, header

SOURCES = ("text", "random", "recall")
_MAX_BYTES = 256 * MIB
_CARRIER_SHARE = 0.8  # the part of all losses that one layer must carry to be named alone
_MIN_TIMES_CHANCE = 2.0  # times guessing among the pairs: below, the original does not do the task


@dataclass(frozen=True)
class Samples:
    """One model's figures: a number a window of text, and one a recall sequence, by its pairs."""

    nll: list[float]  # nats per token
    kl: list[float]  # from the original, nats per token
    recall: Mapping[int, list[float]]  # pairs -> share of right answers


@dataclass(frozen=True)
class LayerCut:
    """One layer cut on one axis, all others whole."""

    layer: int
    axis: Axis
    keep: int  # channels of a head
    samples: Samples
    error: Mapping[str, float]  # source -> squared error over the square of the layer's output


@dataclass(frozen=True)
class Sensitivity:
    """The loss when each layer is cut alone at a few widths, compared with the original."""

    original: Samples
    cuts: list[LayerCut]
    widths: Mapping[Axis, int]  # channels of a head before the cut
    lineage: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = (f"{keep} {axis} channels" for axis, keep in self.variants)
        return f"<Sensitivity of {len(self.layers)} layers, each cut to {list_text(shapes, 8)}>"

    @property
    def layers(self) -> list[int]:
        return sorted({cut.layer for cut in self.cuts})

    @property
    def variants(self) -> list[tuple[Axis, int]]:
        """Axis and width of the cuts, keys first, the widest first."""
        variants: set[tuple[Axis, int]] = {(cut.axis, cut.keep) for cut in self.cuts}
        return sorted(variants, key=lambda variant: (variant[0], -variant[1]))

    @cached_property
    def recalled_pair_counts(self) -> list[int]:
        """Numbers of pairs that the original recalls above chance; others cannot be lost."""
        shares = {pairs: _mean(right) for pairs, right in self.original.recall.items()}
        return [pairs for pairs, share in shares.items() if share > _MIN_TIMES_CHANCE / pairs]

    def find(self, layer: int, axis: Axis, keep: int) -> LayerCut:
        wanted = (layer, axis, keep)
        for cut in self.cuts:
            if (cut.layer, cut.axis, cut.keep) == wanted:
                return cut
        raise StatetrimError(f"layer {layer} was not cut to {keep} {axis} channels")

    def nll_increase(self, cut: LayerCut) -> Interval:
        """In nats, 95 %, paired by window."""
        return difference_interval([_pairs(self.original.nll, cut.samples.nll)])

    def recall_drop(self, cut: LayerCut) -> Interval | None:
        """In shares of answers, the mean over `loads`, 95 %, paired by sequence."""
        if not self.recalled_pair_counts:
            return None
        before, after = self.original.recall, cut.samples.recall
        return -difference_interval(
            [_pairs(before[p], after[p]) for p in self.recalled_pair_counts]
        )

    @property
    def sentence(self) -> str:
        """Where recall lives, and whether one layer carries the loss."""
        if not self.recalled_pair_counts:
            return "The original does not recall these sequences, so they cannot tell where."
        return " ".join(self._axis_sentence(axis) for axis in self._axes)

    @property
    def _axes(self) -> list[Axis]:
        return list(dict.fromkeys(axis for axis, _ in self.variants))

    def _axis_sentence(self, axis: Axis) -> str:
        """At the narrowest width of an axis, where most is lost."""
        keep = min(width for cut_axis, width in self.variants if cut_axis == axis)
        width_text = f"at {keep} of {self.widths[axis]} {axis} channels"
        drops: dict[int, Interval] = {}
        for layer in self.layers:
            drop = self.recall_drop(self.find(layer, axis, keep))
            if drop is not None and drop.low > 0:
                drops[layer] = drop
        if not drops:
            return f"No layer alone costs recall {width_text}."
        total, explained = sum(drop.estimate for drop in drops.values()), 0.0
        carriers = []
        for layer in sorted(drops, key=lambda number: -drops[number].estimate):
            carriers.append(layer)
            explained += drops[layer].estimate
            if explained >= _CARRIER_SHARE * total:
                break
        worst = drops[carriers[0]]
        loss = f"{100 * worst.estimate:.0f} ± {100 * worst.margin:.0f} points"
        if len(carriers) == 1:
            others = max((d.estimate for i, d in drops.items() if i != carriers[0]), default=0.0)
            return (
                f"Recall is carried by layer {carriers[0]} {width_text}: cut alone it costs {loss}, and "
                f"any other layer at most {100 * others:.0f}."
            )
        names = ", ".join(map(str, sorted(carriers)))
        return (
            f"Recall is spread over layers {names} {width_text}: no single layer carries the loss; the "
            f"largest is that of layer {carriers[0]}, {loss}."
        )

    def save(self, path: str | Path) -> None:
        fields = {**header("sensitivity"), "finding": self.sentence}
        write_json(Path(path), {**fields, **asdict(self)}, indent=None)

    @staticmethod
    def load(path: str | Path) -> "Sensitivity":
        stored = read_json(Path(path), _MAX_BYTES)
        check_header(stored, "sensitivity", path)
        try:
            sensitivity = Sensitivity(
                parse_samples(stored["original"]),
                [parse_cut(cut) for cut in stored["cuts"]],
                {axis: int(stored["widths"][axis]) for axis in stored["widths"]},
                dict(stored["lineage"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError):
            raise StatetrimError(f"{path} is not what statetrim analyze writes") from None
        if not _is_valid(sensitivity):
            raise StatetrimError(f"{path} is not what statetrim analyze writes")
        return sensitivity


def parse_samples(stored: Any) -> Samples:
    recall = {int(pairs): list(right) for pairs, right in stored["recall"].items()}
    return Samples(list(stored["nll"]), list(stored["kl"]), recall)


def parse_cut(stored: Any) -> LayerCut:
    names = LayerCut.__dataclass_fields__
    return LayerCut(
        **{n: stored[n] for n in names if n != "samples"}, samples=parse_samples(stored["samples"])
    )


def _is_valid(sensitivity: Sensitivity) -> bool:
    """Untrusted files: every cut known once, with numbers that pair with the original's."""
    ids = [(cut.layer, cut.axis, cut.keep) for cut in sensitivity.cuts]
    expected_count = len(sensitivity.layers) * len(sensitivity.variants)
    return (
        bool(ids)
        and len(set(ids)) == len(ids) == expected_count
        and all(axis in ("key", "value") and axis in sensitivity.widths for _, axis, _ in ids)
        and all(
            type(number) is int and number >= 0
            for layer, _, keep in ids
            for number in (layer, keep)
        )
        and all(pairs > 0 for pairs in sensitivity.original.recall)
        and all(_are_paired(sensitivity.original, cut.samples) for cut in sensitivity.cuts)
        and all(set(cut.error) == set(SOURCES) for cut in sensitivity.cuts)
        and all(_are_finite_numbers(list(cut.error.values())) for cut in sensitivity.cuts)
    )


def _are_paired(before: Samples, after: Samples) -> bool:
    lists = [(before.nll, after.nll), (before.kl, after.kl)]
    lists += [(before.recall[pairs], after.recall.get(pairs, [])) for pairs in before.recall]
    return all(
        _are_finite_numbers(a) and _are_finite_numbers(b) and len(a) == len(b) for a, b in lists
    )


def _are_finite_numbers(values: list[Any]) -> bool:
    return bool(values) and all(type(v) in (int, float) and abs(v) < 1e300 for v in values)


def _pairs(before: list[float], after: list[float]) -> Pairs:
    return Pairs(_tensor(before), _tensor(after))


def _tensor(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
