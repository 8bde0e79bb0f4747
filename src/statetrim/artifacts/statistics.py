"""Sums over calibration tokens, one set per layer. They add, so runs merge and resume exactly."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import StatetrimError, errors_of
from ..maths.formatting import list_text
from ..storage.json_file import parse_json
from ..storage.models import load_if_path
from ..storage.safetensors_file import save_tensors
from .record import check_header, header

TEXT = "text"
_MAX_TOKENS = 2**53  # counts are added and stored as int64, and divided as float64
_TENSOR_NAME = re.compile(r"((?P<source>(?!text)[a-z]{1,32})\.)?(?P<layer>\d{1,5})\.(?P<sum>\w+)")


@dataclass(frozen=True, eq=False)
class LayerStatistics:
    """Float64 sums over `tokens` tokens; a sum that no method needs is None.

    Gram matrices of queries and keys are stored separately, before and after the L2 norm, so that
    one calibration serves methods that need either. Gradients are signed sums over the data.
    """

    tokens: int
    input_square: Tensor | None = None  # [hidden]: squared inputs of the projections
    query_gram: Tensor | None = None  # [heads, channels, channels]: q'q before the L2 norm
    key_gram: Tensor | None = None
    query_unit_gram: Tensor | None = None  # [heads, channels, channels]: q'q after the L2 norm
    key_unit_gram: Tensor | None = None
    query_gradient: Tensor | None = None  # [heads, channels, copies, hidden]: of the summed loss
    key_gradient: Tensor | None = None
    output_square: Tensor | None = None  # [value heads]: mean squares of the read-out
    readout_gram: Tensor | None = None  # [value heads, channels, channels]: after norm and gate
    state_read: Tensor | None = None  # [heads, channels]: q^2 |row of the state|^2, sampled
    state_ranks: Tensor | None = None  # [value heads, 3]: number, ranks and norms of sampled states
    # For the refit; a: read-out of the cut layer, n channels in all; y: output of the original's:
    readout_moment: Tensor | None = None  # [n, n]: aa'
    target_moment: Tensor | None = None  # [hidden, n]: ya'
    target_square: Tensor | None = None  # [1]: |y|^2

    @property
    def sum_names(self) -> tuple[str, ...]:
        """The names of the sums it holds."""
        return tuple(name for name in SUM_NAMES if getattr(self, name) is not None)

    def __repr__(self) -> str:
        shapes = [f"{name} {list(getattr(self, name).shape)}" for name in self.sum_names]
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


_NDIM = {"square": 1, "moment": 2, "read": 2, "ranks": 2, "gram": 3, "gradient": 4}
"""Last word of a sum's name -> its dimensions."""
REFIT_SUM_NAMES = ("readout_moment", "target_moment", "target_square")
"""What `refit` needs: sums over the outputs of a cut and its original on the same tokens."""
SUM_NAMES = tuple(x.name for x in fields(LayerStatistics) if x.name != "tokens")


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

    def __add__(self, other: "Statistics") -> "Statistics":
        if set(self.layers) != set(other.layers):
            raise StatetrimError("the statistics are of different layers, so they do not add")
        lineage = _merge_lineage(self.lineage, other.lineage)
        if set(self.generated) != set(other.generated):
            raise StatetrimError("the statistics are of different sources, so they do not add")
        added = {}
        for name, layers in self.sources.items():
            others = other.sources[name]
            added[name] = {layer: sums + others[layer] for layer, sums in layers.items()}
        return Statistics(added.pop(TEXT), lineage, added)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file atomically, replacing an existing one."""
        tensors: dict[str, Tensor] = {}
        for source, layers in self.sources.items():
            prefix = "" if source == TEXT else f"{source}."
            for layer, sums in layers.items():
                tensors[f"{prefix}{layer}.tokens"] = torch.tensor(sums.tokens)
                for sum_name in sums.sum_names:
                    tensors[f"{prefix}{layer}.{sum_name}"] = getattr(sums, sum_name).contiguous()
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
        if match is None or match["sum"] not in (*SUM_NAMES, "tokens"):
            raise StatetrimError(f"{path} holds {name[:80]!r}, which is not a statistic")
        value: Any = tensor
        if match["sum"] == "tokens":
            value = int(tensor) if tensor.numel() == 1 and tensor.dtype == torch.int64 else -1
            if not 0 <= value <= _MAX_TOKENS:
                raise StatetrimError(f"{path} holds {name!r}, which is not a count")
        elif tensor.dtype != torch.float64:
            raise StatetrimError(f"{path} holds {name!r} in {tensor.dtype}, not float64")
        elif tensor.dim() != _NDIM[match["sum"].rpartition("_")[2]]:
            raise StatetrimError(f"{path} has no usable {name!r}; calibrate again")
        if not tensor.isfinite().all():
            raise StatetrimError(f"{path} holds {name!r} with values that are not finite")
        layers = sources.setdefault(match["source"] or TEXT, {})
        layers.setdefault(int(match["layer"]), {})[match["sum"]] = value
    parsed: dict[str, dict[int, LayerStatistics]] = {}
    for source, layers in sources.items():
        if not layers or not all("tokens" in sums for sums in layers.values()):
            raise StatetrimError(f"{path} is not complete: a layer has no token count")
        parsed[source] = {layer: LayerStatistics(**layers[layer]) for layer in sorted(layers)}
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


def _merge_lineage(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The lineage with the data of both, which must agree in all else."""
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
    """Add statistics, or files of them, in the order given.

    Raises StatetrimError if they differ in their model, layers, sources or sums, or contain the
    same data.
    """
    first, *others = (load_if_path(Statistics.load, item) for item in statistics)
    return sum(others, start=first)


_PARTNER = {  # queries and keys are divided by the same number, which keeps their ratio
    "query_gram": "key_gram",
    "key_gram": "query_gram",
    "query_unit_gram": "key_unit_gram",
    "key_unit_gram": "query_unit_gram",
    "query_gradient": "key_gradient",
    "key_gradient": "query_gradient",
}


def mix_statistics(statistics: Statistics, shares: Mapping[str, float] | None = None) -> Statistics:
    """Add the sources of `statistics`, weighted by `shares`.

    The outputs of a layer may be ten times larger on one source than on another, so every sum is
    first divided by its size in its source, head by head.
    `shares` are those of the generated sources, such as {"recall": 0.5}; text has the remaining
    share. The default is each source's fraction of the tokens. Statistics of text alone are
    returned unchanged. Raises StatetrimError for an unknown source or an invalid share.
    """
    weights = _source_weights(statistics, shares)
    if not statistics.generated:
        return statistics
    layers = {}
    for layer in statistics.layers:
        sources = {name: by_layer[layer] for name, by_layer in statistics.sources.items()}
        layers[layer] = _mix_layer(sources, weights)
    return Statistics(layers, {**statistics.lineage, "shares": weights})


def _source_weights(statistics: Statistics, shares: Mapping[str, float] | None) -> dict[str, float]:
    """Source -> weight, 1 in total: `shares`, with the rest for text and 0 for other sources, or
    the default weights."""
    default_weights = statistics.shares
    if shares is None:
        return default_weights
    unknown = sorted(set(shares) - set(statistics.generated))
    if unknown:
        available = ", ".join(statistics.generated) or "text alone"
        raise StatetrimError(
            f"the statistics hold nothing of {unknown[0]!r}, but {available}; calibrate with it "
            f"first"
        )
    total = sum(shares.values())
    if not isfinite(total) or min(shares.values(), default=0.0) < 0 or total > 1 + 1e-9:
        raise StatetrimError("shares must be from 0 to 1, and at most 1 in total")
    return {TEXT: max(0.0, 1 - total), **dict.fromkeys(statistics.generated, 0.0), **shares}


def _mix_layer(
    sources: Mapping[str, LayerStatistics], shares: Mapping[str, float]
) -> LayerStatistics:
    """The sums of one layer, each divided by its size in its source and added by `shares`; tokens
    are added."""
    mixed: dict[str, Any] = {"tokens": sum(sums.tokens for sums in sources.values())}
    for sum_name in SUM_NAMES:
        values = [getattr(sums, sum_name) for sums in sources.values()]
        shapes = {None if value is None else value.shape for value in values}
        if shapes == {None}:
            continue
        if len(shapes) > 1:
            raise StatetrimError(f"the sources differ in the size or presence of {sum_name!r}")
        mixed[sum_name] = 0
        for (name, sums), value in zip(sources.items(), values, strict=True):
            mixed[sum_name] = mixed[sum_name] + shares[name] * value / _scale(sums, sum_name)
    return LayerStatistics(**mixed)


def _scale(sums: LayerStatistics, sum_name: str) -> Tensor:
    """The size of a sum in its source: one number, or one per head that broadcasts over the sum."""
    value: Tensor = getattr(sums, sum_name)
    if sum_name in REFIT_SUM_NAMES:  # errors relative to the layer's output on this source
        scale = sums.target_square if sums.target_square is not None else torch.ones(1)
    elif sum_name == "output_square":
        scale = torch.tensor([float(sums.tokens)], dtype=value.dtype)
    elif sum_name == "state_ranks":  # means over the sampled states
        scale = value[:, :1]
    elif sum_name == "input_square":
        scale = value.sum()
    else:
        partner = getattr(sums, _PARTNER[sum_name]) if sum_name in _PARTNER else None
        scale = _size_per_head(sum_name, value)
        if partner is not None:
            scale = scale + _size_per_head(sum_name, partner)
        scale = scale.reshape(-1, *[1] * (value.dim() - 1))
    return scale.clamp_min(torch.finfo(value.dtype).tiny)


def _size_per_head(sum_name: str, value: Tensor) -> Tensor:
    """[heads]: the trace of a Gram matrix, the sum of magnitudes of another sum."""
    if sum_name.endswith(("gradient", "read")):
        return value.abs().flatten(1).sum(1)
    return value.diagonal(dim1=-2, dim2=-1).sum(-1)
