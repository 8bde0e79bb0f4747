"""A checkpoint directory: config and headers are read at once, tensors on request."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..cut.geometry import Geometry
from ..cut.rows import ChannelRows, Role
from ..cut.shape import Axis
from ..errors import StatetrimError
from ..families import family_of
from ..families.contract import Config, Family, geometry_of, layer_config, text_config
from ..maths.formatting import shorten
from .channel_rows import (
    LayerRows,
    RowRange,
    find_channel_rows,
    find_head_rows,
    find_resplit_tensors,
    names_by_layer,
)
from .checkpoint_files import (
    CONFIG,
    INDEX,
    MAX_CONFIG_BYTES,
    MAX_INDEX_BYTES,
    SINGLE_FILE,
    model_name,
    path_inside,
)
from .digests import model_digest
from .hub import HubModel, missing_weight_files
from .json_file import read_json
from .quantized import find as quantization
from .quantized.read import dequantize
from .redirections import check_no_redirections
from .safetensors_file import Shard, TensorInfo, read_row_bytes, read_shard, read_tensor

Weights = bool | Literal["headers"]
"""Which weights to open: the files, none, or only the headers of a model on the hub."""


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, as `st.open` returns it. Tensors are read only when they are needed."""

    path: Path
    config: Config
    family: Family
    geometry: Geometry
    shards: tuple[Shard, ...] = ()
    index: dict[str, Any] | None = None  # model.safetensors.index.json, if it exists

    def __repr__(self) -> str:
        geometry = self.geometry
        weights = f"{self.parameters:,} parameters" if self.shards else "no weights"
        return (
            f"<Checkpoint {shorten(self.path, 100)}: {shorten(self.model_type)}, "
            f"{len(geometry.layers)} linear-attention layers, state {geometry.shape} in each of "
            f"{geometry.num_v_heads} heads, {weights}>"
        )

    @property
    def name(self) -> str:
        """The hub id of a model in the hub cache, else the name of its directory."""
        return model_name(self.path.resolve())

    @property
    def model_type(self) -> str:
        """The config's `model_type`."""
        return str(self.config.get("model_type"))

    @property
    def text_config(self) -> Config:
        """The config of the text model inside a multimodal one, else `config`."""
        return text_config(self.config)

    @cached_property
    def tensors(self) -> dict[str, tuple[Shard, TensorInfo]]:
        """Tensor name -> the shard that holds it, and its header entry."""
        return {tensor.name: (shard, tensor) for shard in self.shards for tensor in shard.tensors}

    @property
    def downloaded(self) -> bool:
        """Whether all files of `shards` are on this machine; True if only the config was opened."""
        return all(shard.path.exists() for shard in self.shards)

    @cached_property
    def parameters(self) -> int:
        """Number of parameters; 0 if only the config was opened."""
        return sum(prod(tensor.shape) for tensor in self.logical_tensors.values())

    @cached_property
    def quantized(self) -> dict[str, quantization.QuantizedTensor]:
        """Name of a weight without quantisation -> how it is stored; empty if none is quantised."""
        return quantization.find_quantized_tensors(self._infos, self.config)

    @cached_property
    def _infos(self) -> dict[str, TensorInfo]:
        return {name: info for name, (_, info) in self.tensors.items()}

    @cached_property
    def resplit_tensors(self) -> dict[str, RowRange]:
        """Tensor name -> where its rows are stored, if partly under a neighbour's name.

        Happens when transformers loads and saves a model; see `find_resplit_tensors`.
        """
        return find_resplit_tensors(self.family, self.config, self.geometry, self._infos)

    @cached_property
    def flattened_heads(self) -> dict[str, int]:
        """Name -> heads of tensors stored as [heads, channels] that the family wants flattened."""
        heads: dict[str, int] = {}
        for name, (_, info) in self.tensors.items():
            leaf = name.rpartition(".")[2]
            if leaf in self.family.flattened_tensors and len(info.shape) == 2:
                heads[name] = info.shape[0]
        return heads

    def tensor(self, name: str) -> Tensor:
        """A tensor with its own rows, in the stored dtype; one of `flattened_heads` as a vector,
        and a quantised weight as float32 values."""
        if name in self.quantized:
            return dequantize(self.quantized[name], self)
        if name in self.resplit_tensors:
            row_range = self.resplit_tensors[name]
            joined = torch.cat([self.read_stored(piece) for piece in row_range.names])
            return joined[row_range.start : row_range.start + row_range.size]
        stored = self.read_stored(name)
        return stored.flatten() if name in self.flattened_heads else stored

    def read_stored(self, name: str) -> Tensor:
        """A tensor in its stored dtype and shape."""
        shard, info = self.tensors[name]
        with shard.path.open("rb") as file:
            return read_tensor(file, info)

    def read_stored_row_bytes(self, name: str, start: int, stop: int) -> Tensor:
        """The bytes of some rows of a tensor, uint8 [rows, bytes]."""
        shard, info = self.tensors[name]
        with shard.path.open("rb") as file:
            return read_row_bytes(file, info, start, stop)

    @cached_property
    def channel_rows(self) -> dict[str, LayerRows]:
        """Tensor name -> its layer and the rows of its key and value channels."""
        return find_channel_rows(
            self.family, self.config, self.geometry, self.logical_tensors.values()
        )

    @cached_property
    def head_rows(self) -> dict[str, LayerRows]:
        """Tensor name -> its layer and rows of its heads; StatetrimError for unexpected tensors."""
        self.check_tensors()
        return find_head_rows(
            self.family, self.config, self.geometry, self.logical_tensors.values()
        )

    def check_tensors(self) -> None:
        """Raise StatetrimError if a tensor's name, shape or dtype is not as the family expects."""
        _ = self.channel_rows  # resolving them, once, is the check

    @cached_property
    def logical_tensors(self) -> dict[str, TensorInfo]:
        """Name -> header entry with the shape that `tensor` returns.

        A quantised weight is one tensor, of dtype F32; its scales are not listed.
        """
        stored_names = {name for weight in self.quantized.values() for name in weight.stored_names}
        logical: dict[str, TensorInfo] = {}
        for name, info in self._infos.items():
            if name in stored_names or quantization.is_activation_scale(name):
                continue
            shape = info.shape
            if name in self.resplit_tensors:
                shape = (self.resplit_tensors[name].size, *shape[1:])
            elif name in self.flattened_heads:
                shape = (prod(shape),)
            logical[name] = replace(info, shape=shape)
        for name, weight in self.quantized.items():
            logical[name] = replace(weight.codes, name=name, dtype="F32", shape=weight.shape)
        return logical

    def layer_config(self, layer: int) -> Config:
        """The config of a stock model whose layers all have this layer's widths."""
        return layer_config(self.family, self.config, self.geometry, layer)

    def channels(self, layer: int) -> list[ChannelRows]:
        """The rows of all channels in one layer's mixer, as the family describes them."""
        return self.family.channel_rows(self.layer_config(layer), self.geometry.for_layer(layer))

    def query_key_weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """Query and key projection weights, each as `_weight_rows`: [heads, channels, copies,
        hidden]."""
        return self._weight_rows(layer, "q_proj"), self._weight_rows(layer, "k_proj")

    def value_output_weights(self, layer: int) -> tuple[Tensor, Tensor]:
        """Value projection rows and output projection columns, in the same form."""
        return self._weight_rows(layer, "v_proj"), self._weight_rows(layer, "o_proj")

    def output_weight(self, layer: int) -> Tensor:
        """The output projection as stored, [hidden, value heads x value channels], in float64."""
        return self.tensor(names_by_layer(self.channel_rows, "o_proj")[layer]).double()

    def filters(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Query and key convolution taps, each [heads, channels, copies, width]; None for models
        without a short convolution."""
        if not self.geometry.conv_width:
            return None
        queries, keys = self._weight_rows(layer, "q_conv"), self._weight_rows(layer, "k_conv")
        return queries.squeeze(3), keys.squeeze(3)

    def _weight_rows(self, layer: int, role: Role) -> Tensor:
        """Weights of a layer with this role, [heads, channels, copies, ...], float64; there is one
        copy except where several projections share a key head's channels."""
        copies: list[Tensor] = []
        for name, layer_rows in self.channel_rows.items():
            rows_of_role = [rows for rows in layer_rows.channel_rows if rows.role == role]
            if layer_rows.layer == layer and rows_of_role:
                weight = self.tensor(name).movedim(rows_of_role[0].dim, 0)
                copies += [weight[rows.rows].double() for rows in rows_of_role]
        return torch.stack(copies, dim=2)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the config and all weights, by which artifacts name their model."""
        return model_digest(self.config, self.shards, self.family.file)

    def has_digest(self, digest: Any) -> bool:
        """Whether `digest`, from an untrusted artifact, is this model's."""
        return bool(digest == self.digest)


def open_checkpoint(
    model: str | Path, family: Family | None = None, *, weights: Weights = True
) -> Checkpoint:
    """Open a checkpoint directory, a bare config.json, or a hub id (`OWNER/NAME@REVISION`).

    Reads and checks config and headers; raises StatetrimError. `weights` is for hub ids: files that
    the local cache lacks are downloaded, without `weights` or for models that cannot be pruned only
    the config. "headers" reads the headers of weights on the hub, which is enough for an estimate.
    """
    path = _existing_path(model)
    hub = HubModel.parse(str(model)) if path is None else None
    if path is None:
        if hub is None:
            raise StatetrimError(
                f"{str(model)[:200]} does not exist; give a checkpoint directory, a config.json or "
                f"a hub id"
            )
        path = hub.download_config()
    config_file = path_inside(path, CONFIG) if path.is_dir() else path
    # Nemotron-H and Mamba-Codestral have "time_step_limit": [0.0, Infinity].
    config = read_json(config_file, MAX_CONFIG_BYTES, allow_nan=True)
    family = family or family_of(config)
    config_only = Checkpoint(config_file.parent, config, family, geometry_of(family, config))
    if hub is not None and weights and family.refusal(config) is None:
        if weights == "headers" and missing_weight_files(config_only.path):
            return replace(config_only, shards=hub.read_headers(config_only.path))
        path = hub.download()
    if not path.is_dir():
        return config_only
    shards, index = _read_shards(path)
    return replace(config_only, path=path, shards=shards, index=index)


def require_prunable(model: Checkpoint) -> Checkpoint:
    """Return `model`; raise StatetrimError if its weights are missing or cannot be pruned."""
    reason = model.family.refusal(model.config)
    if reason:
        raise StatetrimError(f"{model.config.get('model_type')} cannot be pruned: {reason}")
    check_no_redirections(model.path, model.config)
    if not model.shards:
        raise StatetrimError(
            f"{model.path} holds no {SINGLE_FILE} and no {INDEX}; "
            f"only safetensors weights can be cut"
        )
    model.check_tensors()
    return model


def check_prunable(model: Checkpoint, axis: Axis) -> None:
    """Raise StatetrimError if `model` cannot be cut along `axis`."""
    family, config, reason = model.family, model.config, None
    if axis == "head":
        rows, reason = family.head_rows(config, model.geometry), family.head_refusal(config)
    else:
        rows = [row for row in model.channels(model.geometry.layers[0]) if row.axis == axis]
        reason = family.value_refusal(config) if axis == "value" else None
    if reason is None and not rows:
        reason = f"family {type(family).__name__} does not describe them"
    if reason:
        action = "removed" if axis == "head" else "cut"
        raise StatetrimError(
            f"the {axis}s of {config.get('model_type')} cannot be {action}: {reason}"
        )


def _existing_path(model: str | Path) -> Path | None:
    """`model` as the path of an existing file or directory; None if it is not one."""
    try:
        path = Path(model).expanduser()
        return path if path.is_dir() or path.is_file() else None
    except (OSError, RuntimeError):  # the name is too long, or ~USER is unknown
        return None


def _read_shards(directory: Path) -> tuple[tuple[Shard, ...], dict[str, Any] | None]:
    """The headers of all shards, and the index if there is one; raises if they disagree."""
    has_index, has_single = (directory / INDEX).exists(), (directory / SINGLE_FILE).exists()
    if has_index and has_single:
        raise StatetrimError(
            f"{directory} has both {INDEX} and {SINGLE_FILE}; keep the one that counts"
        )
    if not has_index:
        return ((read_shard(path_inside(directory, SINGLE_FILE)),) if has_single else ()), None
    index = read_json(path_inside(directory, INDEX), MAX_INDEX_BYTES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise StatetrimError(f"{INDEX} has no 'weight_map'")
    if not isinstance(index.get("metadata"), dict | None):
        raise StatetrimError(f"{INDEX} has 'metadata' that is not an object")
    names = {str(name) for name in weight_map.values()}
    for name in names:
        if not re.fullmatch(r"[\w.-]+\.safetensors", name):
            raise StatetrimError(
                f"{INDEX} names the file {name[:200]!r}; shards must be .safetensors files in "
                f"the same directory"
            )
    shards: list[Shard] = []
    stored_names: set[str] = set()
    for file in sorted(names):  # each is checked before the next is read, so memory stays bounded
        shard = read_shard(path_inside(directory, file))
        for tensor in shard.tensors:
            if weight_map.get(tensor.name) != file:
                raise StatetrimError(
                    f"{file} holds {tensor.name[:200]!r}, but {INDEX} places it "
                    f"{'elsewhere' if tensor.name in weight_map else 'nowhere'}"
                )
            stored_names.add(tensor.name)
        shards.append(shard)
    for name in weight_map:
        if name not in stored_names:
            raise StatetrimError(f"{INDEX} lists {name[:200]!r}, which no shard holds")
    return tuple(shards), index
