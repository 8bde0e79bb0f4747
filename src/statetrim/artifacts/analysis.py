"""The result of `analyze`, by layer and head: `analysis.json` and `analysis.safetensors`."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..cut.geometry import Geometry
from ..errors import StatetrimError, errors_of
from ..maths.formatting import Table
from ..maths.units import MIB
from ..storage.atomic import atomic_write
from ..storage.json_file import write_json
from .record import Artifact, as_fields, header

MAX_ARRAY_BYTES = 2048 * MIB
MAX_TOKENS = 2**24

LOWEST_DECADE, HIGHEST_DECADE, BINS_PER_DECADE = -8, 4, 10
BINS = (HIGHEST_DECADE - LOWEST_DECADE) * BINS_PER_DECADE
"""Histogram bins of log10 of a singular value, the same in all analyses so that they overlay.
The outermost bins include all values beyond them."""


@dataclass(frozen=True, eq=False)
class LayerAnalysis:
    """Rank measures of one layer. Means are over sequences; every value head has a state."""

    effective_rank: Tensor  # float64 [value heads, samples]; nan where every state was zero
    spectrum: Tensor  # float64 [value heads, widest rank]: mean singular values, largest first
    histogram: Tensor  # int64 [value heads, BINS]: counts of singular values
    key_condition: Tensor  # float64 [key heads]: condition number of all keys in the kernel
    query_condition: Tensor  # float64 [key heads]: condition number of all queries

    def __repr__(self) -> str:
        heads, samples = self.effective_rank.shape
        return f"<LayerAnalysis of {heads} heads, {samples} samples of their states>"


ARRAYS = tuple(LayerAnalysis.__dataclass_fields__)


@dataclass(frozen=True, eq=False)
class Analysis:
    """The effective rank of a model's states; `baseline` is that of another on the same text."""

    layers: Mapping[int, LayerAnalysis]
    geometry: Geometry
    positions: Tensor  # int64 [samples]: tokens read when the state was sampled
    burn_in: int  # first tokens, left out of means because they bound the rank by their number
    lineage: Mapping[str, Any] = field(default_factory=dict)
    baseline: "Analysis | None" = None

    def __repr__(self) -> str:
        used, baseline = _percent_text(self.mean_utilization), ""
        if self.baseline is not None:
            baseline = f", {_percent_text(self.baseline.mean_utilization)} before"
        return (
            f"<Analysis of {len(self.layers)} layers: {used} of the state of {self.geometry.shape} "
            f"is used{baseline}>"
        )

    def table(self) -> Table:
        """A row per layer with the utilization of its states, a bar per head; the mean last.

        A baseline has a column of its own, "before".
        """
        mean = self.mean_utilization
        models, used_columns = [mean], ["used"]
        if self.baseline is not None:
            models, used_columns = [self.baseline.mean_utilization, mean], ["before", "used"]
        highest = float(mean.nan_to_num().max())
        rows = []
        for row, (number, layer) in enumerate(self.layers.items()):
            used = [_percent_text(model[row]) for model in models]
            conditions = (
                f"{float(layer.key_condition.nanmedian()):,.0f}",
                f"{float(layer.query_condition.nanmedian()):,.0f}",
            )
            heads = (_bar_text(mean[row], highest), _range_text(mean[row]))
            rows.append((str(number), *used, *heads, *conditions))
        used = [_percent_text(model) for model in models]
        rows.append(("mean", *used, "", _range_text(mean), "", ""))
        column_names = ("layer", *used_columns, "heads", "range", "κ keys", "κ queries")
        return Table("Effective rank of the state", column_names, rows)

    @property
    def max_rank(self) -> int:
        """The largest rank that a state of the widest layer can have."""
        return max(min(shape) for shape in self.geometry.shapes.values())

    @cached_property
    def utilization(self) -> Tensor:
        """[layers, value heads, samples]: effective rank over the largest possible rank."""
        max_ranks = [min(self.geometry.shapes[layer]) for layer in self.layers]
        effective_ranks = torch.stack([x.effective_rank for x in self.layers.values()])
        return effective_ranks / torch.tensor(max_ranks).view(-1, 1, 1)

    @property
    def utilization_by_position(self) -> Tensor:
        """[samples]: utilization at `positions`, mean over layers and heads."""
        return self.utilization.nanmean((0, 1))

    @property
    def mean_utilization(self) -> Tensor:
        """[layers, value heads]: mean utilization over the positions after the burn-in."""
        return self.utilization[..., self.positions > self.burn_in].nanmean(-1)

    def save(self, path: str | Path) -> None:
        """Write the arrays next to `path` with the suffix .safetensors, then `path`; each file
        is written atomically."""
        path = Path(path)
        tensors: dict[str, Tensor] = {}
        summaries = {}
        for name, model in (("model", self), ("baseline", self.baseline)):
            if model is None:
                continue
            summaries[name] = model.summary()
            for number, layer in model.layers.items():
                for array_name in ARRAYS:
                    array = getattr(layer, array_name)
                    tensors[f"{name}.{number}.{array_name}"] = array.contiguous()
        arrays = save(tensors)
        with atomic_write(path.with_suffix(".safetensors")) as temporary_path:
            temporary_path.write_bytes(arrays)
        digest = hashlib.sha256(arrays).hexdigest()
        fields = as_fields({"arrays_sha256": digest, **summaries})
        write_json(path, {**header(_StoredAnalysis.KIND), **fields})

    def summary(self) -> dict[str, Any]:
        """The content of the JSON file for one model: its settings, and figures by head."""
        mean = self.mean_utilization
        layers = {}
        for row, (number, layer) in enumerate(self.layers.items()):
            layers[str(number)] = {
                "utilization": _rounded_list(mean[row]),
                "key_condition": _rounded_list(layer.key_condition),
                "query_condition": _rounded_list(layer.query_condition),
            }
        return {
            "lineage": dict(self.lineage),
            "geometry": asdict(self.geometry),
            "burn_in": self.burn_in,
            "positions": self.positions.tolist(),
            "mean_utilization": _rounded(mean.nanmean()),
            "layers": layers,
        }

    @staticmethod
    def load(path: str | Path) -> "Analysis":
        """Read both files, which are untrusted.

        Raises StatetrimError if they do not belong together or do not fit the geometry.
        """
        path = Path(path)
        stored = _StoredAnalysis.load(path)
        arrays = _read_arrays(path.with_suffix(".safetensors"), stored.arrays_sha256)
        model = _model_of(stored.model, "model", arrays, path)
        if stored.baseline is not None:
            model = replace(model, baseline=_model_of(stored.baseline, "baseline", arrays, path))
        return model


@dataclass(frozen=True)
class _StoredModel:
    """What the JSON file states of one model besides its figures, which the arrays give."""

    geometry: Geometry
    positions: list[int]
    burn_in: int
    lineage: dict[str, Any]

    def validate(self) -> None:
        ascending = all(a < b for a, b in pairwise((0, *self.positions)))
        if not self.positions or not ascending or self.positions[-1] > MAX_TOKENS:
            raise ValueError("positions must increase from 1")
        if self.burn_in < 0:
            raise ValueError("burn_in must not be negative")


@dataclass(frozen=True)
class _StoredAnalysis(Artifact):
    """What is read of the JSON file."""

    KIND = "analysis"

    arrays_sha256: str
    model: _StoredModel
    baseline: _StoredModel | None = None


def _percent_text(values: Tensor) -> str:
    """The mean in percent, without nan."""
    return f"{100 * float(values.nanmean()):.1f}%"


def _range_text(values: Tensor) -> str:
    """The smallest and the largest finite value in percent; empty if there is none."""
    finite = values[values.isfinite()]
    if not len(finite):
        return ""
    return f"{100 * float(finite.min()):.1f}-{100 * float(finite.max()):.1f}%"


def _bar_text(values: Tensor, top: float, max_heads: int = 16) -> str:
    """A bar per head, at most `max_heads`; the value `top` has the highest bar."""
    levels = "▁▂▃▄▅▆▇█"
    heights = (values.nan_to_num() / (top or 1.0) * (len(levels) - 1)).round().long().tolist()
    bars = "".join(levels[height] for height in heights[:max_heads])
    return f"{bars}…" if len(heights) > max_heads else bars


def _read_arrays(path: Path, digest: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file; raises StatetrimError unless its SHA-256 is `digest`."""
    try:
        if path.stat().st_size > MAX_ARRAY_BYTES:
            raise StatetrimError(
                f"{path} is larger than {MAX_ARRAY_BYTES // MIB} MiB, so it is not read"
            )
        content = path.read_bytes()
    except OSError as error:
        raise StatetrimError(f"{path} cannot be read: {error.strerror}") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise StatetrimError(f"{path} is not the file that was written with its analysis.json")
    with errors_of(f"{path} cannot be read as arrays"):
        return dict(load(content))


def _model_of(
    stored: _StoredModel, name: str, arrays: Mapping[str, Tensor], path: Path
) -> Analysis:
    """One model of the file, from the arrays whose names begin with `name`."""
    geometry, positions = stored.geometry, torch.tensor(stored.positions)
    heads, key_heads = geometry.num_v_heads, geometry.num_k_heads
    layers = {}
    for layer, widths in geometry.shapes.items():
        shapes: dict[str, tuple[int, ...]] = {
            "effective_rank": (heads, len(positions)),
            "spectrum": (heads, min(widths)),
            "histogram": (heads, BINS),
            "key_condition": (key_heads,),
            "query_condition": (key_heads,),
        }
        held = dict[str, Tensor]()
        for array_name, shape in shapes.items():
            stored_name = f"{name}.{layer}.{array_name}"
            array = arrays.get(stored_name)
            dtype = torch.int64 if array_name == "histogram" else torch.float64
            if array is None or tuple(array.shape) != shape or array.dtype != dtype:
                raise StatetrimError(f"the arrays of {path} lack {stored_name!r} as {list(shape)}")
            held[array_name] = array
        layers[layer] = LayerAnalysis(**held)
    return Analysis(layers, geometry, positions, stored.burn_in, stored.lineage)


def _rounded_list(values: Tensor) -> list[float | None]:
    """Each value with six decimals; None for nan and infinity."""
    return [_rounded(value) for value in values]


def _rounded(value: Tensor) -> float | None:
    """Six decimals, or None for nan and infinity, which JSON lacks."""
    return round(float(value), 6) if value.isfinite() else None
