"""Which channels of every head a cut keeps, or which heads, before the cut is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from ..errors import StatetrimError
from ..geometry import Axis, ChannelRows, Geometry, Kept, kept_head_masks, kept_masks
from ..maths.formatting import list_text, shorten
from ..maths.table import Table
from .record import Artifact, as_fields, header, parse_record

Channels = Mapping[int, Tensor]
"""Layer -> kept channels [heads, keep], int64, ascending in each head."""


@dataclass(frozen=True, eq=False)
class Plan(Artifact):
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
        return _width_range(self.kept)

    @property
    def value_width_range(self) -> str | None:
        """Channels kept in every value head, such as "32" or "16 to 32"; None if values are not
        cut."""
        return _width_range(self.kept_values) if self.kept_values else None

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
        if self.kept_heads:
            return (
                f"<Plan by {self._methods_text}: keeps {self.keep_heads} heads, "
                f"{len(self.kept)} layers>"
            )
        values = f", {self.value_width_range} in every value head" if self.kept_values else ""
        keys = self.key_width_range if self.kept else 0
        return (
            f"<Plan by {self._methods_text}: keeps {keys} channels in every key head{values}, "
            f"{len(self.kept)} layers>"
        )

    def _repr_html_(self) -> str:
        return self.table().html()

    def table(self) -> Table:
        """A summary with a row per fact."""
        rows = {"method": self._methods_text}
        if self.kept_heads:
            rows["value heads"] = str(self.keep_heads)
        else:
            rows["channels of a key head"] = self.key_width_range
        rows["layers x key heads"] = _layers_by_heads_text(self.kept_heads or self.kept)
        if self.kept_values:
            rows["channels of a value head"] = _width_range(self.kept_values)
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
                texts.append(_method_text(str(method), options))
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
        shapes = {layer: self._kept_shape(geometry, layer) for layer in self.kept}
        after = geometry.with_shapes(shapes)
        if after == geometry:
            raise StatetrimError("the plan keeps every channel, so nothing would change")
        return after

    def _geometry_with_fewer_heads(self, geometry: Geometry, kept: Channels) -> Geometry:
        """`geometry` with the heads in `kept`; raises StatetrimError if they do not fit it, are all
        heads, or if the plan also cuts channels."""
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
            if int(flat.min()) < 0 or int(flat.max()) >= geometry.num_v_heads:
                raise StatetrimError(f"{label} go beyond 0 to {geometry.num_v_heads - 1}")
            if not bool((flat.diff() > 0).all()):
                raise StatetrimError(f"{label} are not in ascending order without repeats")
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

    def _kept_shape(self, geometry: Geometry, layer: int) -> tuple[int, int]:
        """Key width and value width after the cut in one layer."""
        values = geometry.shapes[layer][1]
        if self.kept_values is not None:
            values = self.kept_values[layer].shape[1]
        return self.kept[layer].shape[1], values

    def _check_channels(self, geometry: Geometry, axis: Axis, kept: Channels) -> None:
        """Raise StatetrimError unless every layer of `geometry`, and no other, has a table [heads,
        keep] of channels in range, ascending in each head."""
        _check_layers(geometry, kept)
        heads = geometry.heads(axis)
        for layer, table in kept.items():
            label = f"the plan's {axis} channels of layer {layer}"
            channels, keep = geometry.for_layer(layer).width(axis), table.shape[1]
            if len(table) != heads:
                raise StatetrimError(
                    f"{label} are {list(table.shape)}, not {heads} heads of {keep} channels"
                )
            if int(table.min()) < 0 or int(table.max()) >= channels:
                raise StatetrimError(f"{label} go beyond 0 to {channels - 1}")
            if keep > 1 and not bool((table.diff(dim=1) > 0).all()):
                raise StatetrimError(f"{label} are not in ascending order without repeats")

    def as_json(self) -> dict[str, Any]:
        """The content of the JSON file."""
        fields = {
            "requested": self.requested,
            "keep": self.keep,
            "requested_values": self.requested_values,
            "keep_values": self.keep_values,
            "method": self.method,
            "options": self.options,
            "value_method": self.value_method,
            "value_options": self.value_options,
            **self._head_fields(),
            "seed": self.seed,
            "lineage": self.lineage,
            "notes": self.notes,
            "kept": self.kept,
            "kept_values": self.kept_values,
        }
        return {**header(self.KIND), **as_fields(fields)}

    def _head_fields(self) -> dict[str, Any]:
        """The fields that only plans that remove heads have."""
        if self.kept_heads is None:
            return {}
        return {
            "requested_heads": self.requested_heads,
            "keep_heads": self.keep_heads,
            "head_method": self.head_method,
            "kept_heads": self.kept_heads,
        }

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an untrusted file; raises StatetrimError if it is damaged or contradicts itself."""
        fields = cls.read_fields(path)
        plan = parse_record(fields, cls, path)
        for name in ("keep", "keep_values", "keep_heads"):
            computed = getattr(plan, name)
            stated = fields.get(name)
            if type(stated) is not type(computed) or stated != computed:
                raise StatetrimError(
                    f"{path} says {name} = {str(stated)[:20]}, but lists {computed}"
                )
        return plan

    def check(self) -> None:
        """Raise ValueError unless an untrusted file lists the channels of layers from 0."""
        for name in ("kept", "kept_values", "kept_heads"):
            channels: Channels | None = getattr(self, name)
            if channels is None:
                continue
            if not channels or min(channels) < 0 or max(channels) >= 10**6:
                raise ValueError(f"{name} must list the channels of layers, which count from 0")


def _check_layers(geometry: Geometry, kept: Channels) -> None:
    """Raise StatetrimError unless `kept` has exactly the linear layers of `geometry`."""
    if set(kept) != set(geometry.layers):
        differing = sorted(set(kept) ^ set(geometry.layers))[:5]
        raise StatetrimError(
            f"the plan and the model differ in their linear-attention layers: {differing}"
        )


def _method_text(method: str, options: Mapping[str, Any]) -> str:
    option_texts = (f"{name}={value}" for name, value in options.items())
    return shorten(method, 40) + (f" ({list_text(option_texts)})" if options else "")


def _widths(channels: Channels) -> list[int]:
    """The number of channels kept per head, by layer."""
    return [table.shape[1] for table in channels.values()]


def _width_range(channels: Channels) -> str:
    """The width of all layers, such as "32", or the narrowest and the widest: "16 to 32"."""
    widths = _widths(channels)
    return str(widths[0]) if len(set(widths)) == 1 else f"{min(widths)} to {max(widths)}"


def _layers_by_heads_text(channels: Channels) -> str:
    """Such as "24 x 16", the number of layers and of heads in each."""
    return f"{len(channels)} x {len(next(iter(channels.values())))}"
