"""Store the states of a cache in a code and read them back, in place: what a copy costs."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..storage.checkpoint import Checkpoint
from .cache import slots
from .coding import rounded
from .layout import BFLOAT16, LOW_RANK
from .metric import Metrics
from .prompt import code_cache, keys_first, restored
from .stream import StateFile

Code = str | float
"""The name of a plain code, or the tolerance of ours."""
PLAIN_CODES: Mapping[str, int] = {"bfloat16": BFLOAT16, "int8": 8, "int5": 5, "int4": 4}
"""Bits of a number. The integers have a float16 step per key channel, as engines do it."""


@dataclass(frozen=True, eq=False)
class Copies:
    """The copies of all sequences in a cache."""

    state_bytes: int
    float32_bytes: int
    convolution_bytes: int  # 0 for a plain code, which leaves them as they are
    encode_seconds: float
    decode_seconds: float
    ranks: Mapping[int, Tensor]
    """Layer -> mean rank [value heads] over the sequences; 0 for a head of another mode."""
    stored: StateFile | None = None

    @property
    def share(self) -> float:
        """Bytes of the states as a share of those in float32."""
        return self.state_bytes / self.float32_bytes


def recode(
    cache: Any,
    model: Checkpoint,
    code: Code,
    metrics: Metrics | None = None,
    previous: StateFile | None = None,
) -> Copies:
    """Replace the states in `cache` by what their code decodes to."""
    states = [slot for slot in slots(cache) if slot.is_state]
    float32_bytes = sum(slot.value.numel() * 4 for slot in states)
    began = time.perf_counter()
    if isinstance(code, str):
        coded_bytes = 0
        for slot in states:
            turned = keys_first(slot.value, model)
            keys, values = turned.shape[-2:]
            bits, matrices = PLAIN_CODES[code], turned.float().reshape(-1, keys, values)
            decoded = rounded(matrices, bits).reshape(turned.shape).to(turned)
            slot.put(keys_first(decoded, model).contiguous())
            steps = 0 if bits == BFLOAT16 else 2 * keys
            coded_bytes += len(matrices) * (keys * values * bits // 8 + steps)
        seconds = time.perf_counter() - began
        return Copies(coded_bytes, float32_bytes, 0, seconds, 0.0, {})
    stored = code_cache(cache, model, code, metrics, previous)
    encoded = time.perf_counter()
    ranks = {}
    for slot in slots(cache):
        if slot.name in stored.coded:
            slot.put(restored(slot, stored, model))
    decoded_at = time.perf_counter()
    coded_bytes = 0
    for slot in states:
        coded = stored.coded[slot.name]
        coded_bytes += coded.nbytes
        codes = coded.codes
        by_head = torch.zeros(coded.shape[0])
        by_head[codes.modes == LOW_RANK] = codes.ranks.float()
        ranks[slot.layer] = by_head.reshape(stored.header.batch, -1).mean(0)
    all_bytes = sum(coded.nbytes for coded in stored.coded.values())
    return Copies(
        coded_bytes,
        float32_bytes,
        all_bytes - coded_bytes,
        encoded - began,
        decoded_at - encoded,
        ranks,
        stored,
    )
