"""Save the cache of a prompt in coded form, and restore it into a loaded model."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.statistics import Statistics
from ..errors import StatetrimError
from ..portable.kernels import DeferredState
from ..runtime.live import LiveModel, Runtime
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from ..storage.output import run_and_save
from .coding import Coded, decode, encode
from .metric import Metrics, metric_digest, state_metrics
from .stream import StateFile, StreamHeader, checksum

CONVOLUTION_TOLERANCE = 0.01
"""Of convolution states: 8 bits a number. They matter for three tokens, and are few."""
_STATES = {"_state", "recurrent_state", "recurrent_states"}  # of portable, fla, transformers
_CONVOLUTIONS = {"conv_state", "conv_states"}


@dataclass(frozen=True, eq=False)
class SavedPrompt:
    """How large a saved prompt is, and how exact."""

    state_bytes: int  # of recurrent and convolution states, coded
    plain_bytes: int  # of everything else, such as a KV cache
    worst_error: float  # relative, over all heads


def save_prompt(
    cache: Any,
    out: str | Path,
    *,
    model: ModelLike,
    tolerance: float = 0.05,
    statistics: Statistics | str | Path | None = None,
) -> SavedPrompt:
    """Write the cache that a loaded `model` filled with a prompt to the file `out`.

    No head's error exceeds `tolerance`, in the metric of `statistics` (of `calibrate`) if given. A
    KV cache is stored as it is.
    """
    checkpoint = as_checkpoint(model)
    stored = code_cache(cache, checkpoint, tolerance, state_metrics(statistics, checkpoint))
    record = {"format": "statetrim save_prompt", "checksum": checksum(stored.tensors)}
    run_and_save(out, record, lambda _: stored, StateFile.load)
    state_bytes = sum(coded.nbytes for coded in stored.coded.values())
    return SavedPrompt(state_bytes, stored.nbytes - state_bytes, stored.header.worst_error)


def load_prompt(module: Any, path: str | Path, *, model: ModelLike) -> Any:
    """The cache that `save_prompt` wrote, from which `module`, the loaded `model`, can read on;
    refuses a file of another model."""
    checkpoint, stored = as_checkpoint(model), StateFile.load(path)
    if not checkpoint.has_digest(stored.header.model):
        raise StatetrimError(f"{path} was saved from another model than {checkpoint.path}")
    device = module.get_input_embeddings().weight.device
    live = LiveModel(module, checkpoint, device, Runtime("transformers", "given"))
    # Running one token makes the cache: its structure comes from the model, and only tensors of the
    # shapes that the model makes are taken from the file.
    token = torch.zeros(stored.header.batch, 1, dtype=torch.long)
    with torch.inference_mode():
        _, cache = live.forward_with_cache(token)
    wanted = list(slots(cache))
    names = {*stored.coded, *stored.plain, *stored.header.counters}
    if {slot.name for slot in wanted} != names:
        differing = sorted({slot.name for slot in wanted} ^ names)
        raise StatetrimError(f"the file and this model's cache differ in {differing[0][:80]!r}")
    for slot in wanted:
        slot.put(restored(slot, stored, checkpoint))
    return cache


@dataclass(frozen=True, eq=False)
class Slot:
    """A place in a cache: `holder[key]`, or of a tuple there the item `index`."""

    name: str  # such as "3.recurrent_states.0"
    layer: int
    attribute: str  # of the layer, or the last name in the dictionaries below it
    holder: dict[Any, Any]
    key: Any
    index: int | None = None

    @property
    def value(self) -> Any:
        """The tensor or counter; a state has all pending writes applied."""
        value = self.holder[self.key]
        value = value if self.index is None else value[self.index]
        return value.flush() if isinstance(value, DeferredState) else value

    def put(self, value: Any) -> None:
        if self.index is not None:
            items = list(self.holder[self.key])
            items[self.index] = value
            value = tuple(items)
        self.holder[self.key] = value

    @property
    def is_state(self) -> bool:
        """Whether it holds recurrent states [batch, heads, ., .]."""
        return self.attribute in _STATES and self._dimensions == 4

    @property
    def is_convolution(self) -> bool:
        """Whether it holds convolution states [batch, channels, taps]."""
        return self.attribute in _CONVOLUTIONS and self._dimensions == 3

    @property
    def _dimensions(self) -> int:
        value = self.value
        return value.dim() if isinstance(value, Tensor) else 0


def slots(cache: Any) -> Iterator[Slot]:
    """Every tensor and counter of a cache of transformers, fla or portable."""
    for layer, cached in enumerate(cache.layers):
        yield from _slots_in(vars(cached), str(layer), layer, "")


def _slots_in(holder: dict[Any, Any], place: str, layer: int, attribute: str) -> Iterator[Slot]:
    for key in list(holder):
        value, name = holder[key], f"{place}.{key}"
        owner = key if isinstance(key, str) else attribute
        if isinstance(value, dict):
            yield from _slots_in(value, name, layer, owner)
        elif isinstance(value, tuple | list):
            for index, item in enumerate(value):
                if isinstance(item, Tensor):
                    yield Slot(f"{name}.{index}", layer, owner, holder, key, index)
        elif isinstance(value, Tensor | DeferredState) or type(value) is int:
            yield Slot(name, layer, owner, holder, key)


def code_cache(
    cache: Any, model: Checkpoint, tolerance: float, metrics: Metrics | None = None
) -> StateFile:
    """The contents of a cache, its states coded; refuses a cache without states."""
    coded, plain, counters = dict[str, Coded](), dict[str, Tensor](), dict[str, int]()
    worst, batch = 0.0, 1
    for slot in slots(cache):
        if slot.is_state:
            metric = None if metrics is None else metrics[slot.layer]
            states, batch = keys_first(slot.value, model), len(slot.value)
            coded[slot.name] = encode(states, tolerance, metric)
            worst = max(worst, float(coded[slot.name].errors.max()))  # type: ignore[union-attr]
        elif slot.is_convolution:
            coded[slot.name] = encode(slot.value.mT, min(tolerance, CONVOLUTION_TOLERANCE))
        elif isinstance(slot.value, Tensor):
            plain[slot.name] = slot.value.detach().clone()
        else:
            counters[slot.name] = slot.value
    if not coded:
        raise StatetrimError("the cache holds no recurrent state; run the model on a prompt first")
    digest = metric_digest(metrics)
    header = StreamHeader(model.digest, tolerance, worst, digest, batch, counters=counters)
    return StateFile(header, coded, plain)


def restored(slot: Slot, stored: StateFile, model: Checkpoint) -> Any:
    """The value for a slot, which holds that of one token; refuses one that does not fit."""
    present = slot.value
    if slot.name in stored.header.counters and type(present) is int:
        return stored.header.counters[slot.name]
    if slot.name in stored.coded and (slot.is_state or slot.is_convolution):
        turned = keys_first(present, model) if slot.is_state else present.mT
        coded = stored.coded[slot.name]
        if turned.reshape(-1, *turned.shape[-2:]).shape == coded.shape:
            states = decode(coded).reshape(turned.shape).to(present)
            return (keys_first(states, model) if slot.is_state else states.mT).contiguous()
    plain = stored.plain.get(slot.name)
    if plain is not None and isinstance(present, Tensor) and _fits(plain, present):
        return plain.to(present.device)
    raise StatetrimError(f"{slot.name!r} in the file does not fit this model's cache")


def _fits(plain: Tensor, present: Tensor) -> bool:
    """Whether a tensor can be that of more tokens than the one of `present`."""
    same = plain.dtype == present.dtype and plain.dim() == present.dim()
    pairs = zip(plain.shape, present.shape, strict=False)
    return same and all(size == one or one == 1 for size, one in pairs)


def keys_first(states: Tensor, model: Checkpoint) -> Tensor:
    """States [..., keys, values] from the layout of the family's kernels, or back."""
    return states if model.family.state_key_axis == -2 else states.mT
