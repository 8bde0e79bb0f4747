"""Sums over calibration tokens, one set per layer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import StatetrimError, errors_of
from ..maths.formatting import list_text
from ..storage.json_file import parse_json
from ..storage.safetensors_file import save_tensors
from .record import check_header, header

TEXT = "text"
_MAX_TOKENS = 2**53  # counts are added and stored as int64, and divided as float64
_SMALLEST, _LARGEST = 1e-100, 1e100  # of a sum; beyond, methods would lose it in their products
_TENSOR_NAME = re.compile(
    r"((?P<source>(?!text)[a-z]{1,32})\.)?(?P<layer>\d{1,5})\.(?P<sum>\w{1,64})"
)


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Float64 sums over `tokens` tokens, by the name of their statistic: `layer["query_gram"]`."""

    tokens: int
    sums: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        return self.sums[name]

    @property
    def sum_names(self) -> tuple[str, ...]:
        """The names of the sums it holds, sorted."""
        return tuple(sorted(self.sums))

    def cpu(self) -> "LayerStatistics":
        """A copy in main memory."""
        return LayerStatistics(self.tokens, {name: sum_.cpu() for name, sum_ in self.sums.items()})

    def __repr__(self) -> str:
        shapes = [f"{name} {list(self[name].shape)}" for name in self.sum_names]
        return f"<LayerStatistics of {self.tokens:,} tokens: {list_text(shapes, 8)}>"

    def __add__(self, other: "LayerStatistics") -> "LayerStatistics":
        sums = {name: value + other[name] for name, value in self.sums.items()}
        return LayerStatistics(self.tokens + other.tokens, sums)


@dataclass(frozen=True, eq=False)
class Statistics:
    """The sums that calibration collected, by layer, with the model and data they come from."""

    layers: Mapping[int, LayerStatistics]  # sums over text
    lineage: Mapping[str, Any] = field(default_factory=dict)
    generated: Mapping[str, Mapping[int, LayerStatistics]] = field(default_factory=dict)
    """Kind of generated sequence -> layer -> sums; separate, so that `mix_statistics` can weight
    each source later."""

    @property
    def sources(self) -> dict[str, Mapping[int, LayerStatistics]]:
        """The sums by source: "text", then the generated ones."""
        return {TEXT: self.layers, **self.generated}

    @property
    def shares(self) -> dict[str, float]:
        """The default weight of each source: its fraction of all tokens. Raises StatetrimError if
        there are none."""
        tokens = {name: next(iter(layers.values())).tokens for name, layers in self.sources.items()}
        total = sum(tokens.values())
        if not total:
            raise StatetrimError("the statistics are of 0 tokens; calibrate again")
        return {name: count / total for name, count in tokens.items()}

    @property
    def sum_names(self) -> set[str]:
        """The names of the sums it holds."""
        return set(next(iter(self.layers.values())).sum_names)

    def __repr__(self) -> str:
        tokens = max((sums.tokens for sums in self.layers.values()), default=0)
        sums = list_text(sorted(self.sum_names), 8) if self.layers else "no sums"
        return f"<Statistics of {tokens:,} tokens, {len(self.layers)} layers: {sums}>"

    def save(self, path: str | Path) -> None:
        """Write a safetensors file atomically, replacing an existing one."""
        tensors: dict[str, Tensor] = {}
        for source, layers in self.sources.items():
            prefix = "" if source == TEXT else f"{source}."
            for layer, sums in layers.items():
                tensors[f"{prefix}{layer}.tokens"] = torch.tensor(sums.tokens)
                for sum_name, value in sums.sums.items():
                    tensors[f"{prefix}{layer}.{sum_name}"] = value.contiguous()
        metadata = {**header("statistics"), "lineage": dict(self.lineage)}
        save_tensors(Path(path), tensors, {"statetrim": json.dumps(metadata)})

    @staticmethod
    def load(path: str | Path) -> "Statistics":
        """Read a file of `save`; raises StatetrimError if it is missing, damaged or incomplete."""
        if not Path(path).is_file():  # reading a pipe would block
            raise StatetrimError(f"{path} is missing, or not a file")
        action = f"{path} cannot be read as statistics"
        with errors_of(action), safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get("statetrim", "{}")
            metadata = parse_json(text.encode(), f"the metadata of {path}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        check_header(metadata, "statistics", path)
        lineage = metadata.get("lineage", {})
        data = lineage.get("data", []) if isinstance(lineage, dict) else None
        if not isinstance(data, list) or not all(isinstance(entry, dict) for entry in data):
            raise StatetrimError(f"{path} has no valid 'lineage'")
        sources = _parse_sources(tensors, path)
        return Statistics(sources.pop(TEXT), lineage, sources)


def _parse_sources(
    tensors: Mapping[str, Tensor], path: str | Path
) -> dict[str, dict[int, LayerStatistics]]:
    """Source -> layer -> sums, from tensors named LAYER.SUM for text, else SOURCE.LAYER.SUM."""
    sources: dict[str, dict[int, dict[str, Any]]] = {TEXT: {}}
    for name, tensor in tensors.items():
        match = _TENSOR_NAME.fullmatch(name)
        if match is None:
            raise StatetrimError(f"{path} holds {name[:80]!r}, which is not a statistic")
        value: Any = tensor
        if match["sum"] == "tokens":
            value = int(tensor) if tensor.numel() == 1 and tensor.dtype == torch.int64 else -1
            if not 0 <= value <= _MAX_TOKENS:
                raise StatetrimError(f"{path} holds {name!r}, which is not a count")
        elif tensor.dtype != torch.float64:
            raise StatetrimError(f"{path} holds {name!r} in {tensor.dtype}, not float64")
        elif not _is_in_range(tensor):
            raise StatetrimError(
                f"{path} holds {name!r} with values that are not finite, or too large or too small"
            )
        layers = sources.setdefault(match["source"] or TEXT, {})
        layers.setdefault(int(match["layer"]), {})[match["sum"]] = value
    parsed: dict[str, dict[int, LayerStatistics]] = {}
    for source, layers in sources.items():
        if not layers or not all("tokens" in sums for sums in layers.values()):
            raise StatetrimError(f"{path} is not complete: a layer has no token count")
        parsed[source] = {
            layer: LayerStatistics(sums.pop("tokens"), sums)
            for layer, sums in sorted(layers.items())
        }
    if any(set(layers) != set(parsed[TEXT]) for layers in parsed.values()):
        raise StatetrimError(f"{path} is not complete: its sources are of different layers")
    held = set()
    for statistics in parsed.values():
        by_layer = {(sums.tokens, sums.sum_names) for sums in statistics.values()}
        if len(by_layer) > 1:
            raise StatetrimError(f"{path} is not complete: its layers differ in tokens or sums")
        held |= {names for tokens, names in by_layer if tokens}  # calibration may not be there yet
    if len(held) > 1:
        raise StatetrimError(f"{path} is not complete: its sources differ in their sums")
    return parsed


def _is_in_range(sums: Tensor) -> bool:
    """Whether products of sums keep their digits: all are finite, and the largest is neither huge
    nor tiny. A layer without any output has sums of 0."""
    largest = sums.abs().max() if sums.numel() else 0.0
    return bool(largest == 0 or _SMALLEST <= largest <= _LARGEST)
