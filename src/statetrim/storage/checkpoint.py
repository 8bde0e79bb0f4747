"""A checkpoint directory, read lazily: config, headers, and single tensors on request."""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..families import family_of
from ..families.contract import Config, Family, geometry_of, layer_config
from ..geometry import ChannelRows, Geometry, Role
from ..maths.formatting import bytes_text, shorten
from ..maths.table import Table
from ..progress import ShowProgress
from .claims import LayerClaims, resolve, resolve_heads
from .digests import digest_of, is_sampled, sampled_digests
from .file_names import CONFIG, INDEX, MOST_CONFIG_BYTES, MOST_INDEX_BYTES, SINGLE
from .hub.cache import model_name, repository_in_cache
from .hub.download import HubModel, missing_weights
from .joined import Part, saved_in_equal_parts
from .json_file import read_object
from .redirections import refuse_redirections
from .safetensors_file import Shard, TensorInfo, read_shard, read_tensor

Weights = bool | Literal["headers"]
"""What is opened of the weights: the files, nothing, or of a hub model their headers alone."""

_QUANTIZED_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, as `st.open` returns it. Weights are read only when they are needed."""

    path: Path
    config: Config
    family: Family
    geometry: Geometry
    shards: tuple[Shard, ...] = ()
    index: dict[str, Any] | None = None  # model.safetensors.index.json, where there is one

    def __repr__(self) -> str:
        shape = self.geometry
        weights = f"{self.parameters:,} parameters" if self.shards else "no weights"
        return (
            f"<Checkpoint {shorten(self.path, 100)}: {self._type}, {len(shape.layers)} "
            f"linear-attention layers, state {shape.shape} in each of "
            f"{shape.num_v_heads} heads, {weights}>"
        )

    def _repr_html_(self) -> str:
        return self.table().html()

    def table(self) -> Table:
        """A short summary for a person."""
        shape = self.geometry
        rows = {
            "model type": self._type,
            "linear-attention layers": str(len(shape.layers)),
            "key heads, value heads": f"{shape.num_k_heads}, {shape.num_v_heads}",
            "state per head, keys x values": shape.shape,
            "recurrent state per sequence, float32": bytes_text(4 * shape.state_numel),
            "parameters": f"{self.parameters:,}" if self.shards else "no weights here",
            "path": str(self.path),
        }
        return Table(f"Checkpoint {self.name}", (), list(rows.items()))

    @property
    def name(self) -> str:
        """Its hub id where it came from the hub, else the name of its directory."""
        return model_name(self.path.resolve())

    @property
    def _type(self) -> str:
        return shorten(self.config.get("model_type"))

    @cached_property
    def tensors(self) -> dict[str, tuple[Shard, TensorInfo]]:
        """Every tensor by name, and the shard that holds it."""
        return {tensor.name: (shard, tensor) for shard in self.shards for tensor in shard.tensors}

    @property
    def downloaded(self) -> bool:
        """Whether its weights are on this machine; of a hub model there may be only headers."""
        return all(shard.path.exists() for shard in self.shards)

    @cached_property
    def parameters(self) -> int:
        """Number of stored parameters; 0 where only the config is at hand."""
        return sum(prod(tensor.shape) for _, tensor in self.tensors.values())

    @cached_property
    def resplit(self) -> dict[str, Part]:
        """The tensors whose rows lie partly in their neighbours, as in a model saved again."""
        tensors = {name: info for name, (_, info) in self.tensors.items()}
        return saved_in_equal_parts(self.family, self.config, self.geometry, tensors)

    @cached_property
    def flat(self) -> dict[str, int]:
        """The tensors [heads, channels] that are claimed as one row, and their heads."""
        shapes = {name: info.shape for name, (_, info) in self.tensors.items()}
        leaves = {name: name.rpartition(".")[2] for name in shapes}
        named = [name for name, leaf in leaves.items() if leaf in self.family.flattened_tensors]
        return {name: shapes[name][0] for name in named if len(shapes[name]) == 2}

    def tensor(self, name: str) -> Tensor:
        """One whole tensor, in its stored dtype; one that is `flat` as a single row."""
        if name in self.resplit:
            part = self.resplit[name]
            joined = torch.cat([self._stored(piece) for piece in part.names])
            return joined[part.start : part.start + part.size]
        stored = self._stored(name)
        return stored.flatten() if name in self.flat else stored

    def _stored(self, name: str) -> Tensor:
        shard, info = self.tensors[name]
        with shard.path.open("rb") as file:
            return read_tensor(file, info)

    @cached_property
    def claims(self) -> dict[str, LayerClaims]:
        """Tensor name -> the layer it belongs to and its claims; checks the closed world first."""
        return resolve(self.family, self.config, self.geometry, self._own_tensors)

    @cached_property
    def head_claims(self) -> dict[str, LayerClaims]:
        """The same of whole heads: every tensor that holds some."""
        self.claims  # noqa: B018  (the closed world)
        return resolve_heads(self.family, self.config, self.geometry, self._own_tensors)

    @property
    def _own_tensors(self) -> list[TensorInfo]:
        return [self._as_claimed(tensor) for _, tensor in self.tensors.values()]

    def _as_claimed(self, tensor: TensorInfo) -> TensorInfo:
        if tensor.name in self.resplit:
            return replace(tensor, shape=(self.resplit[tensor.name].size, *tensor.shape[1:]))
        return replace(tensor, shape=(prod(tensor.shape),)) if tensor.name in self.flat else tensor

    def layer_config(self, layer: int) -> Config:
        """The config of a stock model whose layers are all like this one."""
        return layer_config(self.family, self.config, self.geometry, layer)

    def channels(self, layer: int) -> list[ChannelRows]:
        """What the family says of one layer's mixer."""
        return self.family.channel_rows(self.layer_config(layer), self.geometry.for_layer(layer))

    def projections(self, layer: int) -> tuple[Tensor, Tensor]:
        """Query and key projection weights, each [heads, channels, copies, hidden], float64.

        There is one copy except where several projections share a key head's channels.
        """
        return self._rows(layer, "q_proj"), self._rows(layer, "k_proj")

    def values(self, layer: int) -> tuple[Tensor, Tensor]:
        """Value projection rows and output projection columns, each [heads, channels, copies,
        hidden], float64."""
        return self._rows(layer, "v_proj"), self._rows(layer, "o_proj")

    def output_weight(self, layer: int) -> Tensor:
        """The output projection [hidden, value heads x value channels], float64."""
        name = next(
            name
            for name, owner in self.claims.items()
            if owner.layer == layer and owner.claims[0].role == "o_proj"
        )
        return self.tensor(name).double()

    def filters(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Query and key convolution taps, each [heads, channels, copies, width], float64; None for
        models without a short convolution."""
        if not self.geometry.conv_width:
            return None
        return self._rows(layer, "q_conv").squeeze(3), self._rows(layer, "k_conv").squeeze(3)

    def _rows(self, layer: int, role: Role) -> Tensor:
        copies = []
        for name, owner in self.claims.items():
            wanted = [claim for claim in owner.claims if claim.role == role]
            if owner.layer == layer and wanted:
                weight = self.tensor(name).movedim(wanted[0].dim, 0)
                copies += [weight[claim.rows].double() for claim in wanted]
        return torch.stack(copies, dim=2)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the config and all weights, by which artifacts name their model."""
        return digest_of(self.config, self.shards)

    @property
    def fingerprint(self) -> str:
        """The same as `digest`; earlier versions had two."""
        return self.digest

    def is_source(self, mark: Any) -> bool:
        """Whether `mark` is what an artifact calls this model, an earlier version's too."""
        if is_sampled(mark):
            return mark in self._sampled
        return bool(mark == self.digest)

    @cached_property
    def _sampled(self) -> tuple[str, str]:
        return sampled_digests(self.config, self.shards, self.claims)


def open_checkpoint(
    model: str | Path,
    family: Family | None = None,
    *,
    weights: Weights = True,
    progress: ShowProgress = True,
) -> Checkpoint:
    """Open a checkpoint directory, a bare config.json, or a hub id (`OWNER/NAME@REVISION`).

    Reads and checks the config and the headers of the weights. For a hub id, files that are not in
    the local cache are downloaded; without `weights`, or if the model cannot be cut, only the
    config. `weights="headers"` reads the headers on the hub, which is enough for an estimate.
    """
    path = _local(model)
    hub = HubModel.named(str(model)) if path is None else None
    if path is None:
        if hub is None:
            raise StatetrimError(
                f"{str(model)[:200]} does not exist; give a checkpoint directory, a config.json or "
                f"a hub id"
            )
        path = hub.config()
    file = inside(path, CONFIG) if path.is_dir() else path
    # Nemotron-H and Mamba-Codestral have "time_step_limit": [0.0, Infinity].
    config = read_object(file, MOST_CONFIG_BYTES, constants=True)
    family = family or family_of(config)
    bare = Checkpoint(file.parent, config, family, geometry_of(family, config))
    if hub is not None and weights and family.refusal(config) is None and not _quantized(config):
        if weights == "headers" and missing_weights(bare.path):
            return replace(bare, shards=hub.headers(bare.path))
        path = hub.download(progress)
    if not path.is_dir():
        return bare
    shards, index = _open_shards(path)
    return replace(bare, path=path, shards=shards, index=index)


def with_weights(model: Checkpoint) -> Checkpoint:
    """`model`, once it is certain that its weights are here and can be cut."""
    reason = model.family.refusal(model.config)
    if reason:
        raise StatetrimError(f"{model.config.get('model_type')} cannot be pruned: {reason}")
    refuse_quantized(model)
    refuse_redirections(model.path, model.config)
    if not model.shards:
        raise StatetrimError(
            f"{model.path} holds no {SINGLE} and no {INDEX}; only safetensors weights can be cut"
        )
    model.claims  # noqa: B018  (checks every header against the family)
    return model


def check_values(model: Checkpoint) -> Checkpoint:
    """`model`, once it is certain that its value channels can be cut."""
    reason = model.family.value_refusal(model.config)
    claimed = {claim.axis for claim in model.channels(model.geometry.layers[0])}
    if reason is None and "value" not in claimed:
        reason = f"family {type(model.family).__name__} does not describe them"
    if reason:
        raise StatetrimError(
            f"the values of {model.config.get('model_type')} cannot be cut: {reason}"
        )
    return model


def check_heads(model: Checkpoint) -> Checkpoint:
    """`model`, once it is certain that whole heads can be removed from it."""
    reason = model.family.head_refusal(model.config)
    if reason is None and not model.family.head_rows(model.config, model.geometry):
        reason = f"family {type(model.family).__name__} does not describe them"
    if reason:
        raise StatetrimError(
            f"the heads of {model.config.get('model_type')} cannot be removed: {reason}"
        )
    return model


def refuse_quantized(model: Checkpoint) -> None:
    """Quantised rows share scales or packed words with their neighbours, so none can be dropped."""
    found = _quantized(model.config)
    if found is not None:
        raise StatetrimError(
            f"the checkpoint is quantised ({found}): scales cover blocks of rows, so rows cannot "
            f"be cut; prune the original weights and quantise the result"
        )
    for name in _QUANTIZED_FILES:
        if (model.path / name).exists():
            raise StatetrimError(
                f"the checkpoint is quantised ({name} is next to its weights): rows cannot be "
                f"dropped from packed weights; prune the original weights and quantise the result"
            )


def _quantized(config: Config) -> str | None:
    """How the weights are quantised, by which field of the config."""
    inside = [config.get(name) for name in ("text_config", "llm_config")]
    for part in (config, *(x for x in inside if isinstance(x, dict))):
        for key in ("quantization_config", "compression_config"):
            value = part.get(key)
            if value is not None:
                kind = value.get("quant_method") if isinstance(value, dict) else None
                return f"{str(kind or 'unnamed')[:40]}, by config field {key!r}"
    return None


def _local(model: str | Path) -> Path | None:
    """Where `model` is on this machine; None where there is no such place."""
    try:
        path = Path(model).expanduser()
        return path if path.is_dir() or path.is_file() else None
    except (OSError, RuntimeError):  # a name too long, or the home of an unknown user
        return None


def _open_shards(directory: Path) -> tuple[tuple[Shard, ...], dict[str, Any] | None]:
    has_index, has_single = (directory / INDEX).exists(), (directory / SINGLE).exists()
    if has_index and has_single:
        raise StatetrimError(f"{directory} has both {INDEX} and {SINGLE}; keep the one that counts")
    if not has_index:
        return ((read_shard(inside(directory, SINGLE)),) if has_single else ()), None
    index = read_object(inside(directory, INDEX), MOST_INDEX_BYTES)
    where = index.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise StatetrimError(f"{INDEX} has no 'weight_map'")
    if not isinstance(index.get("metadata"), dict | None):
        raise StatetrimError(f"{INDEX} has 'metadata' that is not an object")
    names = {str(name) for name in where.values()}
    wrong = next((n for n in names if not re.fullmatch(r"[\w.-]+\.safetensors", n)), None)
    if wrong is not None:
        raise StatetrimError(
            f"{INDEX} names the file {wrong[:200]!r}; shards must be .safetensors files in "
            f"the same directory"
        )
    shards = []
    for name in sorted(names):  # each is checked before the next is read, so memory stays bounded
        shards.append(read_shard(inside(directory, name)))
        _check_shard(where, shards[-1])
    found = {tensor.name for shard in shards for tensor in shard.tensors}
    missing = next((name for name in where if name not in found), None)
    if missing is not None:
        raise StatetrimError(f"{INDEX} lists {missing[:200]!r}, which no shard holds")
    return tuple(shards), index


def _check_shard(where: dict[str, str], shard: Shard) -> None:
    for tensor in shard.tensors:
        if where.get(tensor.name) != shard.path.name:
            raise StatetrimError(
                f"{shard.path.name} holds {tensor.name[:200]!r}, but {INDEX} places it "
                f"{'elsewhere' if tensor.name in where else 'nowhere'}"
            )


def inside(directory: Path, name: str) -> Path:
    """`directory / name`, once it is certain that no link leads out of the checkpoint.

    A hub cache is the exception it must be: snapshots there link to blobs of the same repository.
    """
    path, real_directory = directory / name, directory.resolve()
    root = repository_in_cache(real_directory) or real_directory
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise StatetrimError(f"{path} is missing") from None
    if not real.is_relative_to(root):
        raise StatetrimError(f"{path} leads out of the checkpoint's directory, so it is not read")
    if not real.is_file():
        raise StatetrimError(f"{path} is not a file but a pipe, a device or a directory")
    return path
