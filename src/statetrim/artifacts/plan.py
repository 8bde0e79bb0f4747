"""Which channels of every head a cut keeps, or which heads, before the cut is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from ..errors import StatetrimError
from ..geometry import Axis, ChannelRows, Geometry, Kept, kept_head_masks, kept_masks
from ..maths.formatting import list_text, range_text, shorten
from ..maths.table import Table, Tabular
from ..storage.checkpoint import Checkpoint, path_inside
from ..storage.output import ARTIFACTS
from .record import Artifact, as_fields, header, parse_record

Channels = Mapping[int, Tensor]
"""Layer -> kept channels [heads, keep], int64, ascending in each head."""
PLAN_FILE = f"{ARTIFACTS}/plan.json"
"""The plan of a cut, in its directory."""
_COUNTS = ("keep", "keep_values", "keep_heads")
"""Properties that a file states too, next to the lists of which they are the lengths."""


@dataclass(frozen=True, eq=False)
class Plan(Artifact, Tabular):
    """The kept channels of each layer and head, how they were chosen, and for which model.

    If whole heads are removed, the remaining heads keep all their channels, and `kept_heads` lists
    the kept value heads of every layer: one row per kept key head, [key heads, value heads of
    each].
    """

    KIND = "plan"
    INDENT = None

    kept: Channels
    requested: str
    method: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    kept_values: Channels | None = None
    requested_values: str | None = None
    value_method: str | None = None
    value_options: Mapping[str, Any] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)  # layer -> what the method reported
    kept_heads: Channels | None = None
    requested_heads: str | None = None
    head_method: str | None = None

    @property
    def keep(self) -> int:
        """Channels kept in every key head; with widths by layer, in the widest layer."""
        return max(_widths(self.kept))

    @property
    def keep_values(self) -> int | None:
        """Channels kept in every value head, in the widest layer; None if values are not cut."""
        return max(_widths(self.kept_values)) if self.kept_values else None

    @property
    def keep_heads(self) -> int | None:
        """Value heads kept in every layer; None if no heads are removed."""
        return next(iter(self.kept_heads.values())).numel() if self.kept_heads else None

    @property
    def key_width_range(self) -> str:
        """Channels kept in every key head, such as "32", or "16 to 32" with widths by layer."""
        return range_text(_widths(self.kept))

    @property
    def value_width_range(self) -> str | None:
        """Channels kept in every value head; None if values are not cut."""
        return range_text(_widths(self.kept_values)) if self.kept_values else None

    @property
    def to(self) -> str:
        """What the plan keeps, as `--to` says it; an axis that is not cut keeps 100%."""
        if self.kept_heads:
            return f"{self.keep_heads}heads"
        shapes = {}
        for layer, kept in self.kept.items():
            keys = "100%" if self.method == "none" else str(kept.shape[1])
            values = str(self.kept_values[layer].shape[1]) if self.kept_values else "100%"
            shapes[layer] = f"{keys}x{values}"
        if len(set(shapes.values())) == 1:
            return next(iter(shapes.values()))
        return ",".join(f"{layer}={shape}" for layer, shape in shapes.items())

    def __repr__(self) -> str:
        keys = self.key_width_range if self.kept else 0
        kept = f"{keys} channels in every key head"
        if self.kept_heads:
            kept = f"{self.keep_heads} heads"
        elif self.kept_values:
            kept += f", {self.value_width_range} in every value head"
        return f"<Plan by {self._methods_text}: keeps {kept}, {len(self.kept)} layers>"

    def table(self) -> Table:
        """A summary with a row per fact."""
        rows = {"method": self._methods_text}
        if self.kept_heads:
            rows["value heads"] = str(self.keep_heads)
        else:
            rows["channels of a key head"] = self.key_width_range
        rows["layers x key heads"] = _layers_by_heads_text(self.kept_heads or self.kept)
        if self.kept_values:
            rows["channels of a value head"] = str(self.value_width_range)
            rows["layers x value heads"] = _layers_by_heads_text(self.kept_values)
        rows |= {"seed": str(self.seed), "model": shorten(self.lineage.get("source"), 16)}
        return Table("Plan", (), list(rows.items()))

    @property
    def _methods_text(self) -> str:
        """The methods of the axes that are cut, with their options."""
        axes: tuple[tuple[str | None, Mapping[str, Any]], ...] = (
            (self.method, self.options),
            (self.value_method, self.value_options),
            (self.head_method, {}),
        )
        texts = []
        for method, options in axes:
            if method not in (None, "none"):
                listed = list_text(f"{name}={value}" for name, value in options.items())
                texts.append(shorten(method, 40) + (f" ({listed})" if options else ""))
        return " and ".join(texts)

    def kept_in_layer(self, layer: int) -> Kept:
        """The kept channels of one layer by axis, each [heads, keep]; without "value" if values are
        not cut."""
        kept: dict[Axis, Tensor] = {"key": self.kept[layer]}
        if self.kept_values is not None:
            kept["value"] = self.kept_values[layer]
        return kept

    def kept_masks(
        self, layer: int, channel_rows: Sequence[ChannelRows], original: Geometry
    ) -> dict[int, Tensor]:
        """What a tensor of one layer keeps: dimension -> bool mask [size], True for entries that
        stay.

        `channel_rows` are the tensor's entries of `Family.head_rows` if the plan removes heads,
        else of `Family.channel_rows`.
        """
        if self.kept_heads is not None:
            return kept_head_masks(channel_rows, self.kept_heads[layer], original.group)
        return kept_masks(channel_rows, self.kept_in_layer(layer))

    def pruned_geometry(self, geometry: Geometry) -> Geometry:
        """`geometry` after the cut; raises StatetrimError if the plan does not fit it."""
        if self.kept_heads is not None:
            return self._geometry_with_fewer_heads(geometry, self.kept_heads)
        self._check_channels(geometry, "key", self.kept)
        if self.kept_values is not None:
            self._check_channels(geometry, "value", self.kept_values)
        shapes = {}
        for layer, (_, values) in geometry.shapes.items():
            if self.kept_values is not None:
                values = self.kept_values[layer].shape[1]
            shapes[layer] = self.kept[layer].shape[1], values
        after = geometry.with_shapes(shapes)
        if after == geometry:
            raise StatetrimError("the plan keeps every channel, so nothing would change")
        return after

    def _geometry_with_fewer_heads(self, geometry: Geometry, kept: Channels) -> Geometry:
        _check_layers(geometry, kept)
        _check_layers(geometry, self.kept)
        cuts_channels = self.kept_values is not None
        for layer, (key_width, _) in geometry.shapes.items():
            cuts_channels = cuts_channels or self.kept[layer].shape[1] != key_width
        if cuts_channels:
            raise StatetrimError("the plan cuts heads and channels at once; make a plan for each")
        shape = next(iter(kept.values())).shape
        for layer, table in kept.items():
            flat, label = table.flatten(), f"the plan's heads of layer {layer}"
            if table.shape != shape:
                raise StatetrimError(f"{label} are {list(table.shape)}, not {list(shape)}")
            _check_ascending(label, flat, geometry.num_v_heads)
            key_heads = table // geometry.group
            is_one_key_head = bool((key_heads == key_heads[:, :1]).all())
            if not is_one_key_head or not bool((key_heads[:, 0].diff() > 0).all()):
                raise StatetrimError(
                    f"{label} are not rows of {shape[1]} heads that read with the same key head"
                )
        if shape[1] < geometry.group and geometry.shared_values > 1:
            raise StatetrimError("heads that share their values can only go together")
        after = geometry.with_heads(shape[0], shape.numel())
        if after == geometry:
            raise StatetrimError("the plan keeps every head, so nothing would change")
        return after

    def _check_channels(self, geometry: Geometry, axis: Axis, kept: Channels) -> None:
        """Raise StatetrimError unless `kept` has a valid table for every layer and no other."""
        _check_layers(geometry, kept)
        heads = geometry.heads(axis)
        for layer, table in kept.items():
            label = f"the plan's {axis} channels of layer {layer}"
            if len(table) != heads:
                raise StatetrimError(
                    f"{label} are {list(table.shape)}, not {heads} heads of {table.shape[1]} "
                    f"channels"
                )
            _check_ascending(label, table, geometry.for_layer(layer).width(axis))

    def as_json(self) -> dict[str, Any]:
        """The content of the JSON file; only plans that remove heads have fields of heads."""
        counts = {name: getattr(self, name) for name in _COUNTS}
        content = {**header(self.KIND), **counts, **as_fields(self)}
        if self.kept_heads is None:
            content = {name: value for name, value in content.items() if "head" not in name}
        return content

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an untrusted file; raises StatetrimError if it is damaged or contradicts itself."""
        fields = cls.read_fields(path)
        plan = parse_record(fields, cls, path)
        for name in _COUNTS:
            computed, stated = getattr(plan, name), fields.get(name)
            if type(stated) is not type(computed) or stated != computed:
                raise StatetrimError(
                    f"{path} says {name} = {str(stated)[:20]}, but lists {computed}"
                )
        return plan

    def check(self) -> None:
        for name in ("kept", "kept_values", "kept_heads"):
            channels: Channels | None = getattr(self, name)
            if channels is None:
                continue
            if not channels or min(channels) < 0 or max(channels) >= 10**6:
                raise ValueError(f"{name} must list the channels of layers, which count from 0")


def load_carried_plan(cut: Checkpoint) -> Plan | None:
    """The plan in the cut's directory, by which it was pruned; None if it carries none."""
    return Plan.load(path_inside(cut.path, PLAN_FILE)) if (cut.path / PLAN_FILE).exists() else None


def _check_layers(geometry: Geometry, kept: Channels) -> None:
    """Raise StatetrimError unless `kept` has exactly the linear layers of `geometry`."""
    if set(kept) != set(geometry.layers):
        differing = sorted(set(kept) ^ set(geometry.layers))[:5]
        raise StatetrimError(
            f"the plan and the model differ in their linear-attention layers: {differing}"
        )


def _check_ascending(label: str, numbers: Tensor, count: int) -> None:
    """Raise StatetrimError unless `numbers` ascend, in each row, within 0 to `count` - 1."""
    if int(numbers.min()) < 0 or int(numbers.max()) >= count:
        raise StatetrimError(f"{label} go beyond 0 to {count - 1}")
    if not bool((numbers.diff() > 0).all()):
        raise StatetrimError(f"{label} are not in ascending order without repeats")


def _widths(channels: Channels) -> list[int]:
    """The number of channels kept per head, by layer."""
    return [table.shape[1] for table in channels.values()]


def _layers_by_heads_text(channels: Channels) -> str:
    """Such as "24 x 16", the number of layers and of heads in each."""
    return f"{len(channels)} x {len(next(iter(channels.values())))}"
