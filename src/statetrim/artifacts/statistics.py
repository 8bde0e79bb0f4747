"""Sums over calibration tokens, one set a layer. They add, so runs merge and resume exactly."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import StatetrimError
from ..maths.formatting import list_text
from ..storage.models import load_if_path
from ..storage.safetensors_file import save_tensors
from .header import check_header, header

TEXT = "text"
_SOURCE_NAME = re.compile(r"(?!text)[a-z]{1,32}")


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Float64 sums over `tokens` tokens; a part that no method asked for is None.

    Grams of queries and keys are stored separately, before and after the L2 norm, so that one
    calibration serves joint, single and normalised selection. Gradients are signed sums over the
    data.
    """

    tokens: int
    input_square: Tensor | None = None  # [hidden]: squares of the projections' input
    query_gram: Tensor | None = None  # [heads, channels, channels]: q'q before the L2 norm
    key_gram: Tensor | None = None
    query_unit_gram: Tensor | None = None  # the same after it
    key_unit_gram: Tensor | None = None
    query_gradient: Tensor | None = None  # [heads, channels, copies, hidden]: of the summed loss
    key_gradient: Tensor | None = None
    output_square: Tensor | None = None  # [value heads]: mean square of the read-out, summed
    readout_gram: Tensor | None = None  # [value heads, channels, channels]: behind norm and gate
    # Of a cut layer with n read-out channels in all, a', and the layer before the cut, y:
    readout_moment: Tensor | None = None  # [n, n]: a'a'
    target_moment: Tensor | None = None  # [hidden, n]: ya'
    target_square: Tensor | None = None  # [1]: y's squares

    def __repr__(self) -> str:
        sums = {name: getattr(self, name) for name in SUM_NAMES}
        shapes = [f"{name} {list(x.shape)}" for name, x in sums.items() if x is not None]
        return f"<LayerStatistics of {self.tokens:,} tokens: {list_text(shapes, 8)}>"

    def __add__(self, other: "LayerStatistics") -> "LayerStatistics":
        sums: dict[str, Any] = {"tokens": self.tokens + other.tokens}
        for name in SUM_NAMES:
            first, second = getattr(self, name), getattr(other, name)
            if (first is None) != (second is None) or (
                first is not None and first.shape != second.shape
            ):
                raise StatetrimError(f"the statistics differ in the size or presence of {name!r}")
            sums[name] = None if first is None else first + second
        return LayerStatistics(**sums)


REFIT_SUM_NAMES = ("readout_moment", "target_moment", "target_square")
"""What `refit` needs: sums over a cut model and its original side by side."""
SUM_NAMES = tuple(part.name for part in fields(LayerStatistics) if part.name != "tokens")


@dataclass(frozen=True, eq=False)
class Statistics:
    """The sums that calibration collected, by layer, with the model and data they come from."""

    layers: Mapping[int, LayerStatistics]  # of the text
    lineage: Mapping[str, Any] = field(default_factory=dict)
    generated: Mapping[str, Mapping[int, LayerStatistics]] = field(default_factory=dict)
    """The same of sequences that were made, by their kind; kept apart, so that what each counts
    can be changed later."""

    @property
    def sources(self) -> dict[str, Mapping[int, LayerStatistics]]:
        return {TEXT: self.layers, **self.generated}

    @property
    def shares(self) -> dict[str, float]:
        """The default weight of each source: its fraction of all tokens."""
        tokens = {name: next(iter(layers.values())).tokens for name, layers in self.sources.items()}
        return {name: count / sum(tokens.values()) for name, count in tokens.items()}

    @property
    def sum_names(self) -> set[str]:
        """The names of the sums it holds."""
        layer = next(iter(self.layers.values()))
        return {name for name in SUM_NAMES if getattr(layer, name) is not None}

    def __repr__(self) -> str:
        tokens = max((sums.tokens for sums in self.layers.values()), default=0)
        sums = list_text(sorted(self.sum_names), 8) if self.layers else "no sums"
        return f"<Statistics of {tokens:,} tokens, {len(self.layers)} layers: {sums}>"

    def __add__(self, other: "Statistics") -> "Statistics":
        if set(self.layers) != set(other.layers):
            raise StatetrimError("the statistics are of different layers, so they do not add")
        lineage = _merge_lineage(self.lineage, other.lineage)
        if set(self.generated) != set(other.generated):
            raise StatetrimError("the statistics are of different sources, so they do not add")
        added = {
            name: {layer: layers[layer] + other.sources[name][layer] for layer in layers}
            for name, layers in self.sources.items()
        }
        return Statistics(added.pop(TEXT), lineage, added)

    def save(self, path: str | Path) -> None:
        """The file appears whole; one that was there is replaced."""
        tensors: dict[str, Tensor] = {}
        for source, layers in self.sources.items():
            prefix = "" if source == TEXT else f"{source}."
            for layer, sums in layers.items():
                tensors[f"{prefix}{layer}.tokens"] = torch.tensor(sums.tokens)
                for sum_name in SUM_NAMES:
                    if (value := getattr(sums, sum_name)) is not None:
                        tensors[f"{prefix}{layer}.{sum_name}"] = value.contiguous()
        metadata = {**header("statistics"), "lineage": dict(self.lineage)}
        save_tensors(Path(path), tensors, {"statetrim": json.dumps(metadata)})

    @staticmethod
    def load(path: str | Path) -> "Statistics":
        if not Path(path).is_file():  # a pipe would wait for ever
            raise StatetrimError(f"{path} is missing, or not a file")
        try:
            with safe_open(path, framework="pt") as file:
                stored = json.loads((file.metadata() or {}).get("statetrim", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except Exception as error:
            reason = str(error).partition("\n")[0][:150]
            raise StatetrimError(f"{path} cannot be read as statistics: {reason}") from None
        metadata = stored if isinstance(stored, dict) else {}
        check_header(metadata, "statistics", path)
        if not isinstance(metadata.get("lineage", {}), dict):
            raise StatetrimError(f"{path} has no valid 'lineage'")
        sources = _parse_sources(tensors, path)
        return Statistics(sources.pop(TEXT), metadata.get("lineage", {}), sources)


def _parse_sources(
    tensors: Mapping[str, Tensor], path: str | Path
) -> dict[str, dict[int, LayerStatistics]]:
    """The text's tensors are named LAYER.PART, those of others SOURCE.LAYER.PART."""
    sources: dict[str, dict[int, dict[str, Any]]] = {}
    for name, tensor in tensors.items():
        *source, layer, sum_name = name.split(".") if name.count(".") in (1, 2) else ("", "")
        is_statistic = sum_name in (*SUM_NAMES, "tokens") and layer.isdecimal() and len(layer) < 6
        if not is_statistic or (source and not _SOURCE_NAME.fullmatch(source[0])):
            raise StatetrimError(f"{path} holds {name[:80]!r}, which is not a statistic")
        if sum_name == "tokens" and (tensor.numel() != 1 or tensor.is_floating_point()):
            raise StatetrimError(f"{path} holds {name!r}, which is not a count")
        if sum_name != "tokens" and tensor.dtype != torch.float64:
            raise StatetrimError(f"{path} holds {name!r} in {tensor.dtype}, not float64")
        layer_fields = sources.setdefault(source[0] if source else TEXT, {}).setdefault(
            int(layer), {}
        )
        layer_fields[sum_name] = int(tensor) if sum_name == "tokens" else tensor
    if TEXT not in sources or any(
        "tokens" not in s for layer_fields in sources.values() for s in layer_fields.values()
    ):
        raise StatetrimError(f"{path} is not complete: a layer has no token count")
    if any(set(layer_fields) != set(sources[TEXT]) for layer_fields in sources.values()):
        raise StatetrimError(f"{path} is not complete: its sources are of different layers")
    return {
        source: {layer: LayerStatistics(**layer_fields[layer]) for layer in sorted(layer_fields)}
        for source, layer_fields in sources.items()
    }


def _merge_lineage(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The same model and settings, different data; the same data twice would count it double."""
    for name in sorted((set(first) | set(second)) - {"data"}):
        if first.get(name) != second.get(name):
            raise StatetrimError(
                f"the statistics differ in {name!r} ({first.get(name)} and {second.get(name)}), "
                f"so they do not add"
            )
    data = [*first.get("data", []), *second.get("data", [])]
    seen = [json.dumps(entry, sort_keys=True) for entry in data]
    if len(set(seen)) != len(seen):
        raise StatetrimError("the same data is in both statistics, so it would count twice")
    return {**first, "data": data}


def merge(statistics: Iterable[Statistics | str | Path]) -> Statistics:
    """Add up statistics, in the order given."""
    first, *others = (load_if_path(Statistics.load, item) for item in statistics)
    for other in others:
        first = first + other
    return first
