"""The recurrent state rounded as engines store it, while a model runs.

An engine computes a step in float32 from the state it has stored, reads the output from the new
state, and then stores that one. So the state is rounded after every decoded token, and in a prompt
where the engine ends a piece of it. Scales, where a dtype needs them, are per head and value
channel: one for the keys of each.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import StatetrimError
from ...families.recurrences import Recurrence
from ...maths.stored import FORMATS, fake_quantize
from ...portable.deferred import DeferredState
from ..kernel_hooks import signature_of, wrapped_kernels
from ..live import LiveModel
from ..logits import LogitReader, Logits
from .walk import unit

PIECE = 64  # tokens: the chunk of the prefill kernels
_STATES = ("initial_state", "initial_states")
_WANTED = ("output_final_state", "return_final_states")


@dataclass(frozen=True)
class StateStorage:
    """How a state is stored between calls.

    A prompt's state is rounded after every `piece` tokens; 1 rounds after every token, as decoding
    does. Rounding is to nearest, or `stochastic` from `seed`.
    """

    dtype: str = "float32"
    piece: int = PIECE
    stochastic: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            known = ", ".join(FORMATS)
            raise StatetrimError(f"a state cannot be stored in {self.dtype!r}; choose {known}")
        if self.piece < 1:
            raise StatetrimError(f"a prompt cannot be read in pieces of {self.piece} tokens")

    @property
    def rounds(self) -> bool:
        return self.dtype != "float32"


@contextmanager
def stored_states(live: LiveModel, storage: StateStorage) -> Iterator[None]:
    """Within, the states of every recurrence kernel are stored so; float32 changes nothing."""
    if not storage.rounds:
        yield
        return
    rounding = _Rounding(live, storage)
    with wrapped_kernels(live, rounding.wrap):
        yield
    if not rounding.calls:
        raise StatetrimError("no recurrence kernel was called, so no state was rounded")


class StoredReader(LogitReader):
    """Logits of a model whose states are stored so."""

    def __init__(self, live: LiveModel, storage: StateStorage) -> None:
        super().__init__(live)
        self.storage = storage

    def at(self, ids: Tensor) -> Logits:
        with stored_states(self.live, self.storage):
            return super().at(ids)


class _Rounding:
    def __init__(self, live: LiveModel, storage: StateStorage) -> None:
        self.storage, self.family = storage, live.checkpoint.family
        self.axis = self.family.state_key_axis
        self.generator: torch.Generator | None = None
        if storage.stochastic:
            self.generator = torch.Generator().manual_seed(storage.seed)
        self.calls = 0

    def wrap(self, name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
        signature = signature_of(kernel)
        names = list(signature.parameters)

        def rounded(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            bound = signature.bind(*args, **kwargs)
            if "state" in names:  # Mamba-2 writes its one step in place
                result = kernel(*args, **kwargs)
                bound.arguments["state"].copy_(self._stored(bound.arguments["state"]))
                return result
            bound.apply_defaults()
            given = bound.arguments
            first = next(name for name in _STATES if name in names)
            wanted = next(name for name in _WANTED if name in names)
            recurrence = self.family.recurrence(name)
            if self.storage.piece == 1 and recurrence and given[first] is None:
                output, state = self._by_token(given, recurrence)
                asked = given[wanted] or first == "initial_state"
                return (output, state) if asked else output
            # As they were handed over: the kernel behind a wrapper may order them otherwise.
            by_place = names[: len(args)]
            changed = {first, wanted, "chunk_size"} & {*names} - {*by_place}

            def call() -> Any:
                by_name = kwargs | {n: given[n] for n in given if n in {*kwargs, *changed}}
                return kernel(*(given[n] for n in by_place), **by_name)

            return self._in_pieces(call, given, first, wanted)

        rounded.__signature__ = signature  # type: ignore[attr-defined]
        return rounded

    def _by_token(self, given: Mapping[str, Any], recurrence: Recurrence) -> tuple[Tensor, Tensor]:
        """The kernel's recurrence from an empty state, one token at a time, in float32: a call of
        the kernel for each would take several times as long."""
        query, key = next((given[q], given[k]) for q, k in self.family.query_and_key if k in given)
        dtype, writes = query.dtype, recurrence(given, slice(None))
        value = writes.value.float()
        heads, keys = value.shape[2], key.shape[-1]
        query, key = (
            unit(x.float(), given).repeat_interleave(heads // x.shape[2], dim=2)
            for x in (query, key)
        )
        if self.family.scales_queries:
            query = query * keys**-0.5
        decay = None if writes.log_decay is None else writes.log_decay.exp().float().unsqueeze(-1)
        beta = None if writes.beta is None else writes.beta.float().unsqueeze(-1)
        state = value.new_zeros(len(value), heads, keys, value.shape[-1])
        output = torch.empty_like(value)
        for t in range(value.shape[1]):
            if decay is not None:
                state = state * decay[:, t]
            write, column = value[:, t], key[:, t].unsqueeze(-1)
            if beta is not None:
                write = beta[:, t] * (write - (state * column).sum(-2))
            state = state + column * write.unsqueeze(-2)
            output[:, t] = (state * query[:, t].unsqueeze(-1)).sum(-2)
            state = fake_quantize(state, self.storage.dtype, -2, self.generator)
        if given.get("D") is not None:  # Mamba-2's way past the state
            output = output + given["D"].float().unsqueeze(-1) * given["hidden_states"].float()
        return output.to(dtype), state if self.axis == -2 else state.mT

    def _in_pieces(
        self, call: Callable[[], Any], given: dict[str, Any], first: str, wanted: str
    ) -> Any:
        """The kernel, called for a few tokens at a time, from the state as it was stored; `call`
        calls it with what is `given`."""
        asked = given[wanted]
        key = next(given[key] for _, key in self.family.query_and_key if key in given)
        whole, time = tuple(key.shape[:2]), key.shape[1]
        in_time = {
            name: x
            for name, x in given.items()
            if isinstance(x, Tensor) and x.dim() > 2 and tuple(x.shape[:2]) == whole
            if name != first
        }
        outputs = []
        state = given[first]
        given[wanted] = True
        for start in range(0, time, self.storage.piece):
            part = slice(start, min(start + self.storage.piece, time))
            given.update({name: x[:, part] for name, x in in_time.items()}, **{first: state})
            if "chunk_size" in given:  # else a short piece is padded to a whole chunk
                fitting = 1 << (part.stop - part.start - 1).bit_length()
                given["chunk_size"] = min(given["chunk_size"], fitting)
            output, state = call()
            outputs.append(output)
            if isinstance(state, DeferredState):
                latest = state.flush()
                latest.copy_(self._stored(latest))
            else:
                state = self._stored(state)
        output = torch.cat(outputs, dim=1)
        return (output, state) if asked or first == "initial_state" else output

    def _stored(self, state: Tensor) -> Tensor:
        return fake_quantize(state, self.storage.dtype, self.axis, self.generator)
