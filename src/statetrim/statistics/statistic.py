"""A statistic: a sum over calibration tokens that selection methods or a refit need."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..artifacts.statistics import LayerStatistics
from ..cut.shape import Axis
from ..errors import StatetrimError
from ..runtime.kernel_hooks import KernelCall, MixerInput, Readout
from ..runtime.states import StateBlock
from ..storage.channel_rows import names_by_layer
from ..storage.checkpoint import Checkpoint

_HEADS = {"key": ("key_heads",), "value": ("value_heads", "output_heads")}
"""Axis -> dimensions that are the heads which choose channels along it."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients of the loss, summed over a batch, in the projections of one layer."""

    layer: int
    query: Tensor  # [key heads, channels, copies, hidden], float64
    key: Tensor


Seen = KernelCall | StateBlock | MixerInput | Readout | Gradients
"""What a forward (and backward) pass shows of one layer."""
Scale = Callable[[LayerStatistics], Tensor]
"""The size of a sum in its source, [1] or [heads]."""


@dataclass(frozen=True, eq=False)
class Statistic:
    """The definition of a sum, with which calibration collects it, files are checked, sources are
    weighted and methods get it.

    `shape` names its dimensions, "key_heads keys" for example; `sizes` lists the names.
    `measure(seen, model)` gives what one object of the type `sees` adds. Sources are added after
    division by `scale`; by default by the sum of magnitudes, head by head if it has heads.
    """

    name: str
    shape: str
    sees: type[Seen]
    measure: Callable[[Any, Checkpoint], Tensor]
    scale: Scale | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z]\w{0,63}", self.name) or self.name == "tokens":
            raise StatetrimError(f"{self.name!r} cannot be the name of a statistic")

    def has_heads(self, axis: Axis) -> bool:
        """Whether the first dimension is the heads that choose channels along `axis`."""
        return self.shape.split()[0] in _HEADS[axis]

    def divisor(self, sums: LayerStatistics) -> Tensor:
        """The size of the sum in its source; it broadcasts over the sum."""
        value = sums[self.name]
        if self.scale is not None:
            size = self.scale(sums)
        elif self.has_heads("key") or self.has_heads("value"):
            size = magnitudes(self.name)(sums)
        else:
            size = value.abs().sum()
        size = size.clamp_min(torch.finfo(value.dtype).tiny)
        return size.reshape(-1, *[1] * (value.dim() - 1))

    def shape_in(self, model: Checkpoint, layer: int) -> tuple[int, ...]:
        """The shape of the sum in one layer."""
        known = sizes(model, layer)
        return tuple(known[name] if name in known else int(name) for name in self.shape.split())


def check_sums(
    statistics: Iterable[Statistic], sums: LayerStatistics | None, model: Checkpoint, layer: int
) -> None:
    """Raise StatetrimError unless the layer's `sums` hold all `statistics`, finite and of the
    model's sizes. They may come from an untrusted file."""
    for statistic in statistics:
        value = sums.sums.get(statistic.name) if sums else None
        has_shape = value is not None and value.shape == statistic.shape_in(model, layer)
        if value is None or not has_shape or not bool(value.isfinite().all()):
            raise unusable(statistic.name, layer)


def unusable(name: str, layer: int) -> StatetrimError:
    """The error for a sum that is absent, or not of the expected shape."""
    return StatetrimError(
        f"the statistics of layer {layer} have no usable {name!r}; calibrate again"
    )


def traces(*names: str) -> Scale:
    """The traces [heads] of these Gram matrices together. Queries and keys are divided by the same
    number, which keeps their ratio."""
    return _together(names, lambda gram: gram.diagonal(dim1=-2, dim2=-1).sum(-1))


def magnitudes(*names: str) -> Scale:
    """The sums of magnitudes [heads] of these sums together."""
    return _together(names, lambda value: value.abs().flatten(1).sum(1))


def _together(names: Iterable[str], size: Callable[[Tensor], Tensor]) -> Scale:
    def scale(sums: LayerStatistics) -> Tensor:
        first, *others = (size(sums[name]) for name in names if name in sums.sums)
        return sum(others, start=first)

    return scale


def sizes(model: Checkpoint, layer: int) -> dict[str, int]:
    """The dimensions that a statistic of one layer may have, by name."""
    geometry = model.geometry.for_layer(layer)
    roles = [rows.role for rows in model.channels(layer)]
    known = {
        "key_heads": geometry.heads("key"),
        "keys": geometry.head_k_dim,
        "query_copies": roles.count("q_proj"),  # projections that share a head's channels
        "key_copies": roles.count("k_proj"),
        "value_heads": geometry.heads("value"),  # those that choose their own channels
        "values": geometry.head_v_dim,
        "output_heads": geometry.num_v_heads,  # of the kernel
    }
    projection = names_by_layer(model.channel_rows, "o_proj").get(layer)
    if projection is None:  # a family whose values are not cut need not name it
        return known | {"hidden": model.query_key_weights(layer)[0].shape[-1]}
    hidden, readout = model.logical_tensors[projection].shape  # all channels of all value heads
    return known | {"hidden": hidden, "readout": readout}
