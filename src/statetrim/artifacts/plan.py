"""A decision not yet carried out: which channels of every head stay."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..geometry import Axis, Geometry, Kept
from ..maths.units import MIB
from ..storage.json_file import read_object, write_object

FORMAT = "statetrim plan"
VERSION = 1
MOST_PLAN_BYTES = 24 * MIB

Channels = Mapping[int, Tensor]
"""Layer -> kept channels [heads, keep], int64, ascending in each head."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Kept channels per layer and head, how they were chosen, and for which model."""

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

    @property
    def keep(self) -> int:
        """Channels kept in every key head."""
        return next(iter(self.kept.values())).shape[1]

    @property
    def keep_values(self) -> int | None:
        """Channels kept in every value head, or None when values are not cut."""
        return next(iter(self.kept_values.values())).shape[1] if self.kept_values else None

    def layer(self, layer: int) -> Kept:
        """What stays in one layer, by axis."""
        kept: dict[Axis, Tensor] = {"key": self.kept[layer]}
        if self.kept_values is not None:
            kept["value"] = self.kept_values[layer]
        return kept

    def resized(self, geometry: Geometry) -> Geometry:
        """`geometry` after the cut, once the plan is certain to fit it."""
        self._fit(geometry, "key", self.kept)
        if self.kept_values is not None:
            self._fit(geometry, "value", self.kept_values)
        after = geometry.resized(self.keep, self.keep_values)
        if after == geometry:
            raise StatetrimError("the plan keeps every channel, so nothing would change")
        return after

    def _fit(self, geometry: Geometry, axis: Axis, kept: Channels) -> None:
        if set(kept) != set(geometry.layers):
            odd = sorted(set(kept) ^ set(geometry.layers))[:5]
            raise StatetrimError(
                f"the plan and the model differ in their linear-attention layers: {odd}"
            )
        heads, channels = geometry.heads(axis), geometry.channels(axis)
        keep = next(iter(kept.values())).shape[1]
        for layer, table in kept.items():
            where = f"the plan's {axis} channels of layer {layer}"
            if tuple(table.shape) != (heads, keep):
                raise StatetrimError(
                    f"{where} are {list(table.shape)}, not {heads} heads of {keep} channels"
                )
            if int(table.min()) < 0 or int(table.max()) >= channels:
                raise StatetrimError(f"{where} go beyond 0 to {channels - 1}")
            if keep > 1 and not bool((table.diff(dim=1) > 0).all()):
                raise StatetrimError(f"{where} are not in ascending order without repeats")

    def save(self, path: str | Path) -> None:
        write_object(
            Path(path),
            {
                "format": FORMAT,
                "version": VERSION,
                "requested": self.requested,
                "keep": self.keep,
                "requested_values": self.requested_values,
                "keep_values": self.keep_values,
                "method": self.method,
                "options": dict(self.options),
                "value_method": self.value_method,
                "value_options": dict(self.value_options),
                "seed": self.seed,
                "lineage": dict(self.lineage),
                "notes": dict(self.notes),
                "kept": _lists(self.kept),
                "kept_values": None if self.kept_values is None else _lists(self.kept_values),
            },
            indent=None,
        )

    @staticmethod
    def load(path: str | Path) -> "Plan":
        fields = read_object(Path(path), MOST_PLAN_BYTES)
        if fields.get("format") != FORMAT:
            raise StatetrimError(f"{path} is not a statetrim plan")
        if type(fields.get("version")) is not int or fields["version"] != VERSION:
            raise StatetrimError(
                f"{path} is a plan of version {str(fields.get('version'))[:20]}; this statetrim "
                f"reads version {VERSION}"
            )
        values = fields.get("kept_values")
        plan = Plan(
            kept=_tensors(fields.get("kept"), path),
            requested=str(fields.get("requested")),
            method=str(fields.get("method")),
            seed=_typed(fields, "seed", int, path),
            options=_typed(fields, "options", dict, path),
            kept_values=None if values is None else _tensors(values, path),
            requested_values=_text(fields, "requested_values"),
            value_method=_text(fields, "value_method"),
            value_options=_typed({"value_options": {}} | fields, "value_options", dict, path),
            lineage=_typed(fields, "lineage", dict, path),
            notes=_typed({"notes": {}} | fields, "notes", dict, path),
        )
        for name, listed in (("keep", plan.keep), ("keep_values", plan.keep_values)):
            said = fields.get(name)
            if type(said) is not type(listed) or said != listed:
                raise StatetrimError(f"{path} says {name} = {str(said)[:20]}, but lists {listed}")
        return plan


def _lists(channels: Channels) -> dict[str, list[list[int]]]:
    return {str(layer): table.tolist() for layer, table in channels.items()}


def _tensors(layers: Any, path: str | Path) -> dict[int, Tensor]:
    if not isinstance(layers, dict) or not layers:
        raise StatetrimError(f"{path} lists no kept channels")
    return {_layer(name, path): _tensor(table, name, path) for name, table in layers.items()}


def _layer(name: str, path: str | Path) -> int:
    if not name.isdecimal() or len(name) > 6 or str(int(name)) != name:
        raise StatetrimError(f"{path} names a layer {name[:40]!r}; layers are whole numbers")
    return int(name)


def _tensor(table: Any, layer: str, path: str | Path) -> Tensor:
    rows_ok = isinstance(table, list) and bool(table) and all(isinstance(r, list) for r in table)
    if not rows_ok or not table[0] or any(len(row) != len(table[0]) for row in table):
        raise StatetrimError(
            f"{path}, layer {layer}: every head must list the same number of channels"
        )
    if not all(type(c) is int and 0 <= c < 2**31 for row in table for c in row):
        raise StatetrimError(f"{path}, layer {layer}: channels must be whole numbers from 0")
    return torch.tensor(table, dtype=torch.int64)


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    return None if value is None else str(value)


def _typed(fields: dict[str, Any], name: str, kind: type, path: str | Path) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise StatetrimError(f"{path} has no valid {name!r}")
    return value
