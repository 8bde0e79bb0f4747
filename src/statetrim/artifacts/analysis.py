"""The result of `analyze`, by layer and head: `analysis.json`, and its arrays next to it."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..errors import StatetrimError
from ..families.contract import MAX_CHANNELS, MAX_HEADS, MAX_LAYERS
from ..geometry import Geometry
from ..maths.table import Table
from ..maths.units import MIB, is_integer_list
from ..storage.atomic import atomic_write
from ..storage.json_file import read_json, write_json
from .header import check_header, header

MAX_JSON_BYTES = 24 * MIB
MAX_ARRAY_BYTES = 2048 * MIB
MAX_TOKENS = 2**24

LOWEST_DECADE, HIGHEST_DECADE, BINS_PER_DECADE = -8, 4, 10
BINS = (HIGHEST_DECADE - LOWEST_DECADE) * BINS_PER_DECADE
"""Histogram bins of log10 of a singular value, the same in all analyses so that they overlay; the
outermost take everything beyond."""


@dataclass(frozen=True, eq=False)
class LayerAnalysis:
    """One layer. Means are over sequences; heads that share keys have states of their own."""

    effective_rank: Tensor  # float64 [value heads, samples]; nan where every state was zero
    spectrum: Tensor  # float64 [value heads, widest rank]: mean singular values, largest first
    histogram: Tensor  # int64 [value heads, BINS]: how many singular values fell where
    key_condition: Tensor  # float64 [key heads]: of all keys as the state sees them
    query_condition: Tensor
    key_filters: Tensor | None = None  # float64 [key heads, channels, copies, width]
    query_filters: Tensor | None = None

    def __repr__(self) -> str:
        heads, samples = self.effective_rank.shape
        return f"<LayerAnalysis of {heads} heads, {samples} samples of their states>"

    @property
    def key_similarity(self) -> Tensor | None:
        """[key heads]: mean |cosine| between the convolution filters of a head's channels."""
        return None if self.key_filters is None else filter_similarity(self.key_filters)

    @property
    def query_similarity(self) -> Tensor | None:
        return None if self.query_filters is None else filter_similarity(self.query_filters)


ARRAYS = tuple(LayerAnalysis.__dataclass_fields__)


@dataclass(frozen=True, eq=False)
class Analysis:
    """The effective rank of a model's states; `baseline` is another model on the same text."""

    layers: Mapping[int, LayerAnalysis]
    geometry: Geometry
    positions: Tensor  # int64 [samples]: tokens seen when the state was looked at
    burn_in: int  # tokens left out of spectra and means, while the rank is capped by their number
    lineage: Mapping[str, Any] = field(default_factory=dict)
    baseline: "Analysis | None" = None

    def __repr__(self) -> str:
        geometry, used = self.geometry, _percent_text(self.mean_utilization)
        baseline_text = (
            self.baseline and f", {_percent_text(self.baseline.mean_utilization)} before"
        )
        return (
            f"<Analysis of {len(self.layers)} layers: {used} of the state of {geometry.shape} "
            f"is used{baseline_text or ''}>"
        )

    def _repr_html_(self) -> str:
        return self.table().html()

    def table(self) -> Table:
        """One row per layer: the effective rank of its states, with a bar for each head; means
        last."""
        mean = self.mean_utilization
        baseline_mean = None if self.baseline is None else self.baseline.mean_utilization
        highest = float(mean.nan_to_num().max())
        rows = [
            (
                str(number),
                *([] if baseline_mean is None else [_percent_text(baseline_mean[row])]),
                _percent_text(mean[row]),
                _bar_text(mean[row], highest),
                _range_text(mean[row]),
                f"{float(layer.key_condition.nanmedian()):,.0f}",
                f"{float(layer.query_condition.nanmedian()):,.0f}",
                _similarity_text(layer.query_similarity, layer.key_similarity),
            )
            for row, (number, layer) in enumerate(self.layers.items())
        ]
        means = (
            [_percent_text(mean)]
            if baseline_mean is None
            else [_percent_text(baseline_mean), _percent_text(mean)]
        )
        rows.append(("mean", *means, "", _range_text(mean), "", "", ""))
        used_columns = ("used",) if baseline_mean is None else ("before", "used")
        column_names = ("layer", *used_columns, "heads", "range", "κ keys", "κ queries", "filters")
        return Table("Effective rank of the state", column_names, rows)

    @property
    def max_rank(self) -> int:
        """The largest rank a state can have, in the widest layer."""
        return max(min(shape) for shape in self.geometry.shapes.values())

    @cached_property
    def utilization(self) -> Tensor:
        """[layers, value heads, samples]: effective rank over the largest possible."""
        max_ranks = [min(self.geometry.shapes[layer]) for layer in self.layers]
        effective_ranks = torch.stack([x.effective_rank for x in self.layers.values()])
        return effective_ranks / torch.tensor(max_ranks).view(-1, 1, 1)

    @property
    def utilization_by_position(self) -> Tensor:
        """[samples]: utilization by token, mean over layers and heads."""
        return self.utilization.nanmean((0, 1))

    @property
    def mean_utilization(self) -> Tensor:
        """[layers, value heads]: mean over the tokens after the burn-in."""
        return self.utilization[..., self.positions > self.burn_in].nanmean(-1)

    def save(self, path: str | Path) -> None:
        """The arrays next to `path`, then `path`; each file appears whole."""
        path = Path(path)
        models = dict(self._named_models())
        arrays = save(
            {k: v for name, model in models.items() for k, v in model._named_arrays(name)}
        )
        with atomic_write(path.with_suffix(".safetensors")) as temporary_path:
            temporary_path.write_bytes(arrays)
        content = header("analysis")
        content["arrays_sha256"] = hashlib.sha256(arrays).hexdigest()
        write_json(path, content | {name: model.summary() for name, model in models.items()})

    def summary(self) -> dict[str, Any]:
        """What a person or a script reads first; everything else stands in the arrays."""
        mean = self.mean_utilization
        return {
            "lineage": dict(self.lineage),
            "geometry": _geometry_fields(self.geometry),
            "burn_in": self.burn_in,
            "positions": self.positions.tolist(),
            "mean_utilization": _rounded(mean.nanmean()),
            "layers": {
                str(number): {
                    "utilization": _rounded_list(mean[row]),
                    "key_condition": _rounded_list(layer.key_condition),
                    "query_condition": _rounded_list(layer.query_condition),
                    "key_filter_similarity": _rounded_list(layer.key_similarity),
                    "query_filter_similarity": _rounded_list(layer.query_similarity),
                }
                for row, (number, layer) in enumerate(self.layers.items())
            },
        }

    def _named_models(self) -> Iterator[tuple[str, "Analysis"]]:
        yield "model", self
        if self.baseline is not None:
            yield "baseline", self.baseline

    def _named_arrays(self, prefix: str) -> Iterator[tuple[str, Tensor]]:
        for number, layer in self.layers.items():
            for name in ARRAYS:
                if getattr(layer, name) is not None:
                    yield f"{prefix}.{number}.{name}", getattr(layer, name).contiguous()

    @staticmethod
    def load(path: str | Path) -> "Analysis":
        """Both files, once it is certain that they belong together and fit the geometry."""
        path = Path(path)
        content = read_json(path, MAX_JSON_BYTES)
        check_header(content, "analysis", path)
        arrays = _read_arrays(path.with_suffix(".safetensors"), content.get("arrays_sha256"))
        models = {
            name: _parse_model(content[name], name, arrays, path)
            for name in ("model", "baseline")
            if name in content
        }
        if "model" not in models:
            raise StatetrimError(f"{path} has no valid 'model'")
        if arrays:
            raise StatetrimError(f"the arrays of {path} hold {next(iter(arrays))[:80]!r} besides")
        return replace(models["model"], baseline=models.get("baseline"))


def filter_similarity(filters: Tensor) -> Tensor:
    """[heads, channels, copies, width] -> [heads]: mean |cosine| over pairs of distinct channels.

    Filters drawn at random score 0.42 at width 4: only what lies above that is similarity.
    """
    unit = _unit_rows(filters.transpose(1, 2))
    cosine = (unit @ unit.mT).abs().mean(1)
    channels = cosine.shape[-1]
    self_similarity = cosine.diagonal(dim1=-2, dim2=-1).sum(-1)
    return (cosine.sum((-2, -1)) - self_similarity) / (channels * (channels - 1))


def _unit_rows(x: Tensor) -> Tensor:
    norm: Tensor = x.norm(dim=-1, keepdim=True)
    return x / norm.clamp(min=torch.finfo(x.dtype).tiny)


def _percent_text(values: Tensor) -> str:
    return f"{100 * float(values.nanmean()):.1f}%"


def _range_text(values: Tensor) -> str:
    finite = values[values.isfinite()]
    return (
        f"{100 * float(finite.min()):.1f}-{100 * float(finite.max()):.1f}%" if len(finite) else ""
    )


def _bar_text(values: Tensor, top: float, max_heads: int = 16) -> str:
    """One bar per head, relative to the head of the model with the highest rank."""
    levels = "▁▂▃▄▅▆▇█"
    heights = (values.nan_to_num() / (top or 1.0) * (len(levels) - 1)).round().long().tolist()
    return "".join(levels[height] for height in heights[:max_heads]) + (
        "…" if len(heights) > max_heads else ""
    )


def _similarity_text(query: Tensor | None, key: Tensor | None) -> str:
    if query is None or key is None:
        return "none"
    return f"{float(query.mean()):.2f}, {float(key.mean()):.2f}"


def _read_arrays(path: Path, digest: Any) -> dict[str, Tensor]:
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
    try:
        return dict(load(content))
    except Exception as error:
        reason = str(error).partition("\n")[0][:120]
        raise StatetrimError(f"{path} cannot be read as arrays: {reason}") from None


def _parse_model(fields: Any, name: str, arrays: dict[str, Tensor], path: Path) -> Analysis:
    """One model of the file; takes its own out of `arrays`."""
    if not isinstance(fields, dict):
        raise StatetrimError(f"{path} has no valid {name!r}")
    geometry = _parse_geometry(fields.get("geometry"), path)
    positions, burn_in = fields.get("positions"), fields.get("burn_in")
    if (
        not isinstance(positions, list)
        or not _is_increasing(positions)
        or type(burn_in) is not int
        or burn_in < 0
    ):
        raise StatetrimError(f"{path} has no valid 'positions' and 'burn_in'")
    if not isinstance(fields.get("lineage"), dict):
        raise StatetrimError(f"{path} has no valid 'lineage'")
    layers = {
        layer: _pop_layer(
            geometry.for_layer(layer), len(positions), f"{name}.{layer}.", arrays, path
        )
        for layer in geometry.layers
    }
    return Analysis(layers, geometry, torch.tensor(positions), burn_in, fields["lineage"])


def _geometry_fields(geometry: Geometry) -> dict[str, Any]:
    """Few models have widths by layer or several states a head, and older versions know neither."""
    fields = asdict(geometry) | {"layers": list(geometry.layers)}
    defaults = {"widths": (), "copies": 1}
    return {n: value for n, value in fields.items() if n not in defaults or value != defaults[n]}


def _parse_geometry(fields: Any, path: Path) -> Geometry:
    largest_allowed = {"num_k_heads": MAX_HEADS, "num_v_heads": MAX_HEADS}
    largest_allowed |= {"head_k_dim": MAX_CHANNELS, "head_v_dim": MAX_CHANNELS, "conv_width": 1024}
    largest_allowed |= {"conv_key_heads": MAX_TOKENS, "conv_value_heads": MAX_TOKENS}
    largest_allowed |= {"shared_values": MAX_HEADS, "copies": MAX_HEADS}
    if isinstance(fields, dict):
        # written before there were such fields
        fields = {"shared_values": 1, "copies": 1, "widths": []} | fields
    if not isinstance(fields, dict) or set(fields) != {*largest_allowed, "layers", "widths"}:
        raise StatetrimError(f"{path} has no valid 'geometry'")
    for name, largest in largest_allowed.items():
        smallest = 0 if name.startswith("conv") else 1
        if type(fields[name]) is not int or not smallest <= fields[name] <= largest:
            raise StatetrimError(f"{path} has no valid {name!r}")
    layers = fields["layers"]
    if not _is_increasing(layers, smallest=0) or len(layers) > MAX_LAYERS:
        raise StatetrimError(f"{path} has no valid list of layers")
    geometry = Geometry(**fields | {"layers": tuple(layers), "widths": ()})
    return _with_widths_by_layer(geometry, fields["widths"], path) if fields["widths"] else geometry


def _with_widths_by_layer(geometry: Geometry, widths: Any, path: Path) -> Geometry:
    is_one_per_layer = isinstance(widths, list) and len(widths) == len(geometry.layers)
    if not is_one_per_layer or not all(
        is_integer_list(w) and len(w) == 2 and min(w) >= 1 for w in widths
    ):
        raise StatetrimError(f"{path} has no valid 'widths'")
    shapes = dict(zip(geometry.layers, ((keys, values) for keys, values in widths), strict=True))
    resized = geometry.with_shapes(shapes)
    if resized.resized() != geometry:
        raise StatetrimError(f"{path} has 'widths' other than its 'head_k_dim' and 'head_v_dim'")
    return resized


def _pop_layer(
    geometry: Geometry, samples: int, prefix: str, arrays: dict[str, Tensor], path: Path
) -> LayerAnalysis:
    heads, key_heads = geometry.num_v_heads, geometry.num_k_heads
    shapes = {
        "effective_rank": (heads, samples),
        "spectrum": (heads, min(geometry.head_k_dim, geometry.head_v_dim)),
        "histogram": (heads, BINS),
        "key_condition": (key_heads,),
        "query_condition": (key_heads,),
    }
    tensors = {name: arrays.pop(prefix + name, None) for name in ARRAYS}
    for name, shape in shapes.items():
        array = tensors[name]
        dtype = torch.int64 if name == "histogram" else torch.float64
        if array is None or tuple(array.shape) != shape or array.dtype != dtype:
            raise StatetrimError(f"the arrays of {path} lack {prefix + name!r} as {list(shape)}")
    for name in ("key_filters", "query_filters"):
        array = tensors[name]
        if (array is None) != (geometry.conv_width == 0) or (
            array is not None
            and (
                array.dim() != 4
                or (*array.shape[:2], array.shape[3])
                != (key_heads, geometry.head_k_dim, geometry.conv_width)
                or array.dtype != torch.float64
            )
        ):
            raise StatetrimError(f"the arrays of {path} have no valid {prefix + name!r}")
    return LayerAnalysis(**tensors)  # type: ignore[arg-type]


def _is_increasing(value: Any, smallest: int = 1) -> bool:
    return (
        is_integer_list(value)
        and bool(value)
        and smallest <= value[0]
        and value[-1] <= MAX_TOKENS
        and all(a < b for a, b in pairwise(value))
    )


def _rounded_list(values: Tensor | None) -> list[float | None] | None:
    return None if values is None else [_rounded(value) for value in values]


def _rounded(value: Tensor) -> float | None:
    """JSON has no nan."""
    return round(float(value), 6) if value.isfinite() else None
