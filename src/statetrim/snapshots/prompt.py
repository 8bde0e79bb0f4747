"""Save the cache of a prompt in coded form, and restore it into a loaded model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan
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
from ..storage.safetensors_file import STORED_DTYPES
from .coding import Coded, decode, encode
from .metric import Metrics, metric_digest, state_metrics
from .stream import Contents, StateFile, StreamHeader, checksum

_STATES = {"_state", "recurrent_state", "recurrent_states"}  # of portable, fla, transformers
_CONVOLUTIONS = {"conv_state", "conv_states"}


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
        return self.attribute in _STATES and getattr(self.value, "ndim", 0) == 4

    @property
    def is_convolution(self) -> bool:
        """Whether it holds convolution states [batch, channels, taps]."""
        return self.attribute in _CONVOLUTIONS and getattr(self.value, "ndim", 0) == 3

    @property
    def saved_as_code(self) -> bool:
        """Whether a saved prompt holds it in coded form."""
        return self.is_state or self.is_convolution


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


CONVOLUTION_TOLERANCE = 0.01
"""Of convolution states: 8 bits a number. They matter for three tokens, and are few."""
MAX_MAGNITUDE = 1e12
"""Of numbers in a cache: products of three of them are finite in float32."""


_BATCH, _TOKENS = 2, 3  # of a cache that shows which sizes grow with either


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
    checkpoint, contents = as_checkpoint(model), Contents.read(path)
    if not checkpoint.has_digest(contents.header.model):
        raise StatetrimError(f"{path} was saved from another model than {checkpoint.path}")
    device = module.get_input_embeddings().weight.device
    live = LiveModel(module, checkpoint, device, Runtime("transformers", "given"))
    with torch.inference_mode():
        _, cache = live.forward_with_cache(torch.zeros(1, 1, dtype=torch.long))
        _, larger = live.forward_with_cache(torch.zeros(_BATCH, _TOKENS, dtype=torch.long))
    _check_fit(contents, list(slots(cache)), list(slots(larger)), checkpoint)
    stored = contents.load()
    for slot in slots(cache):
        slot.put(restored(slot, stored, checkpoint))
    return cache


def code_cache(
    cache: Any, model: Checkpoint, tolerance: float, metrics: Metrics | None = None
) -> StateFile:
    """The contents of a cache, its states coded; refuses a cache without states."""
    coded, plain, counters = dict[str, Coded](), dict[str, Tensor](), dict[str, int]()
    worst, batch = 0.0, 1
    for slot in slots(cache):
        if isinstance(slot.value, Tensor):
            _check_numbers(slot.name, slot.value)
        if slot.is_state:
            metric = None if metrics is None else metrics[slot.layer]
            batch = len(slot.value)
            coded[slot.name] = encode(_as_matrices(slot, model), tolerance, metric)
            worst = max(worst, float(coded[slot.name].errors.max()))  # type: ignore[union-attr]
        elif slot.is_convolution:
            bound = min(tolerance, CONVOLUTION_TOLERANCE)
            coded[slot.name] = encode(_as_matrices(slot, model), bound)
        elif isinstance(slot.value, Tensor):
            plain[slot.name] = slot.value.detach().clone()
        else:
            counters[slot.name] = slot.value
    if not coded:
        raise StatetrimError("the cache holds no recurrent state; run the model on a prompt first")
    digest = metric_digest(metrics)
    header = StreamHeader(model.digest, tolerance, worst, digest, batch, counters=counters)
    return StateFile(header, coded, plain)


def _check_fit(
    contents: Contents, wanted: Sequence[Slot], larger: Sequence[Slot], model: Checkpoint
) -> None:
    """Refuse a file whose sizes are not those of a prompt, all of one batch and number of tokens.

    Two caches of the model say which sizes there are: `wanted` of one token, and `larger` of
    `_TOKENS` in each of `_BATCH` sequences.
    """
    header, lengths = contents.header, set[int]()
    names = {*contents.tensors, *header.counters}
    if {slot.name for slot in wanted} != names:
        differing = sorted({slot.name for slot in wanted} ^ names)
        raise StatetrimError(f"the file and this model's cache differ in {differing[0][:80]!r}")
    for slot, larger_slot in zip(wanted, larger, strict=True):
        stored, ones = _stored_sizes(slot, contents), _sizes_in_file(slot, model)
        severals = _sizes_in_file(larger_slot, model)
        fits = stored is not None and len(stored) == len(ones) == len(severals)
        for size, one, several in zip(stored or (), ones, severals, strict=False):
            if (one, several) == (1, _TOKENS):
                lengths.add(size)
            else:
                fits &= size == (one * header.batch if several == one * _BATCH else one)
        if not fits:
            raise StatetrimError(f"{slot.name!r} in the file does not fit this model's cache")
    if len(lengths) > 1 or 0 in lengths:
        raise StatetrimError(f"{contents.path} holds different numbers of tokens, or none")


def _stored_sizes(slot: Slot, contents: Contents) -> Sequence[int] | None:
    """What `_sizes_in_file` gave for this slot of the saved cache; None if it was of another kind
    or dtype."""
    value, info = slot.value, contents.tensors.get(slot.name)
    if slot.saved_as_code:
        return contents.header.shapes.get(slot.name)
    if not isinstance(value, Tensor):
        counter = contents.header.counters.get(slot.name)
        return None if counter is None else [counter]
    is_same = info is not None and STORED_DTYPES.get(info.dtype) == value.dtype
    return info.shape if info is not None and is_same else None


def _sizes_in_file(slot: Slot, model: Checkpoint) -> Sequence[int]:
    """The shape of a tensor as it is stored, of coded states [heads, ., .], or the counter."""
    value = slot.value
    if not isinstance(value, Tensor):
        return [value]
    return _as_matrices(slot, model).shape if slot.saved_as_code else value.shape


def restored(slot: Slot, stored: StateFile, model: Checkpoint) -> Any:
    """The value for a slot from a file that fits it; refuses numbers that no cache holds."""
    present = slot.value
    if not isinstance(present, Tensor):
        return stored.header.counters[slot.name]
    if slot.saved_as_code:
        decoded = decode(stored.coded[slot.name])
        turned = keys_first(decoded, model) if slot.is_state else decoded.mT
        value = turned.reshape(-1, *present.shape[1:]).to(present).contiguous()
    else:
        value = stored.plain[slot.name].to(present.device)
    _check_numbers(slot.name, value)
    return value


def _as_matrices(slot: Slot, model: Checkpoint) -> Tensor:
    """States [heads, keys, values], or convolution states [sequences, taps, channels]."""
    turned = keys_first(slot.value, model) if slot.is_state else slot.value.mT
    return turned.reshape(-1, *turned.shape[-2:])


def _check_numbers(name: str, values: Tensor) -> None:
    lowest, highest = map(float, torch.aminmax(values)) if values.numel() else (nan, nan)
    if not -MAX_MAGNITUDE <= lowest <= highest <= MAX_MAGNITUDE:  # nan too
        raise StatetrimError(f"{name!r} holds no numbers, or some above {MAX_MAGNITUDE:g} or nan")


def keys_first(states: Tensor, model: Checkpoint) -> Tensor:
    """States [..., keys, values] from the layout of the family's kernels, or back."""
    return states if model.family.state_key_axis == -2 else states.mT
