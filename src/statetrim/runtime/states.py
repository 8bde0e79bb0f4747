"""Recurrent states of a running model: recomputed a few at a time, or stored as engines do.

The family defines the recurrence (`families/recurrences.py`). A state is [head_k_dim, head_v_dim].

An engine computes a step in float32 from the stored state, reads the output from the new state,
and stores that. So the state is rounded after every decoded token, and in a prompt after every
piece. A dtype that needs scales has one per head and value channel.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import StatetrimError
from ..families.contract import Family
from ..families.recurrences import Recurrence
from ..maths.quantization import FORMATS, fake_quantize
from ..portable import kernels
from ..portable.kernels import DeferredState
from .kernel_hooks import KernelCall, query_and_key_names, wrapped_kernels
from .live import LiveModel

BLOCK = 256
"""Tokens processed at once; memory does not grow with the sequence."""
MAX_STATES = 32
"""States per head that are in memory at once."""


@dataclass(frozen=True, eq=False)
class StateBlock:
    """Queries, keys and sampled states of a block of tokens, float64."""

    layer: int
    query: Tensor  # [batch x query heads of a key head, time, key heads, head_k_dim], as used
    key: Tensor
    states: Tensor  # [batch, samples, value heads, head_k_dim, head_v_dim]


def walk_states(
    call: KernelCall, family: Family, every: int, dtype: str = "float32", piece: int = 64
) -> Iterator[StateBlock]:
    """Blocks of a kernel call in order, with the state after every `every`-th token.

    `every` is a power of two; the last sample is the final state, whatever the length. The state is
    rounded to `dtype` after every `piece` tokens, a multiple of `every`. Refuses initial states,
    packed sequences, and kernels whose recurrence the family does not define.
    """
    arguments = call.arguments
    if arguments.get("initial_state") is not None or arguments.get("initial_states") is not None:
        raise StatetrimError("the analysis starts from empty states; run the model without a cache")
    if arguments.get("cu_seqlens") is not None:
        raise StatetrimError("the analysis takes sequences of one length, not packed ones")
    recurrence = family.recurrence(call.kernel)
    if recurrence is None:
        raise StatetrimError(
            f"the analysis does not know the recurrence of {call.kernel!r}; "
            f"family {type(family).__name__} names none for it"
        )
    block_size, time = max(every, min(BLOCK, every * MAX_STATES)), call.key.shape[1]
    block_size = block_size if dtype == "float32" else piece
    state: Tensor | None = None
    for start in range(0, time, block_size):
        tokens = slice(start, start + block_size)
        query = l2_normalized(call.queries_by_key_head[:, tokens].double(), arguments)
        key = l2_normalized(call.key[:, tokens].double(), arguments)
        new = recurrence(arguments, tokens)
        states = kernels.chunk_states(
            key, new.value, new.log_decay, new.beta, state, chunk_size=every
        )
        state = states[:, -1]
        if dtype != "float32":
            state = fake_quantize(state.float(), dtype, -2).double()
            states = torch.cat([states[:, :-1], state.unsqueeze(1)], 1)
        yield StateBlock(call.layer, query, key, states)


def l2_normalized(x: Tensor, arguments: Mapping[str, Any]) -> Tensor:
    """`x` [..., channels] after the kernel's L2 norm, if these arguments switch it on."""
    return kernels.l2_normalized(x) if arguments.get("use_qk_l2norm_in_kernel") else x


PIECE = 64  # tokens: the chunk of the prefill kernels


@dataclass(frozen=True)
class StateStorage:
    """The dtype in which a state is stored between kernel calls.

    In a prompt the state is rounded after every `piece` tokens; 1 rounds after every token, as
    decoding does. Rounding is to nearest, or `stochastic` with `seed`.
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
    def is_lossy(self) -> bool:
        """Whether storing rounds the state."""
        return self.dtype != "float32"


@contextmanager
def stored_states(live: LiveModel, storage: StateStorage) -> Iterator[None]:
    """Within, every recurrence kernel rounds its state to the storage dtype."""
    if not storage.is_lossy:
        yield
        return
    rounding = _Rounding(live, storage)
    with wrapped_kernels(live, rounding.wrap):
        yield
    if not rounding.num_calls:
        raise StatetrimError("no recurrence kernel was called, so no state was rounded")


class _Rounding:
    """Wraps kernels so that they round their state."""

    def __init__(self, live: LiveModel, storage: StateStorage) -> None:
        self.storage, self.family = storage, live.checkpoint.family
        self.axis = self.family.state_key_axis
        seeded = torch.Generator().manual_seed
        self.generator = seeded(storage.seed) if storage.stochastic else None
        self.num_calls = 0

    def wrap(self, name: str, kernel: Callable[..., Any], signature: inspect.Signature) -> Any:
        """`kernel` with its state rounded: after every token or piece of a prompt, as `storage`
        says, and after the call if it updates the state in place."""
        names = list(signature.parameters)

        def call_rounded(*args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            bound = signature.bind(*args, **kwargs)
            if "state" in names:  # Mamba-2's decoding step updates it in place
                result = kernel(*args, **kwargs)
                bound.arguments["state"].copy_(self._round(bound.arguments["state"]))
                return result
            bound.apply_defaults()
            arguments = bound.arguments
            state_name = "initial_state" if "initial_state" in names else "initial_states"
            return_name = "output_final_state"
            if return_name not in names:
                return_name = "return_final_states"  # Mamba-2
            query_name, key_name = query_and_key_names(self.family, name, arguments)
            recurrence = self.family.recurrence(name)
            if self.storage.piece == 1 and recurrence and arguments[state_name] is None:
                query, key = arguments[query_name], arguments[key_name]
                output, state = self._run_by_token(query, key, arguments, recurrence)
                returns_state = arguments[return_name] or state_name == "initial_state"
                return (output, state) if returns_state else output
            # Keywords stay keywords: a wrapped kernel may have another order of parameters.
            positional_names = names[: len(args)]
            changed_names = {state_name, return_name, "chunk_size"}.intersection(names)
            keyword_names = changed_names.union(kwargs).intersection(arguments)

            def call() -> Any:
                by_name = dict(kwargs)
                for argument in keyword_names.difference(positional_names):
                    by_name[argument] = arguments[argument]
                return kernel(*[arguments[n] for n in positional_names], **by_name)

            key_shape = arguments[key_name].shape
            return self._run_in_pieces(call, arguments, key_shape, state_name, return_name)

        return call_rounded

    def _run_by_token(
        self, query: Tensor, key: Tensor, arguments: Mapping[str, Any], recurrence: Recurrence
    ) -> tuple[Tensor, Tensor]:
        """Compute the recurrence from an empty state, rounding after every token; in float32
        PyTorch, whatever the arithmetic of the kernel. Against a kernel call per token it is faster
        on tiny heads, and takes 1.5 times as long on 16 heads of 128x128. Returns the output, in
        the dtype of the query, and the final state in the kernel's layout."""
        dtype, writes = query.dtype, recurrence(arguments, slice(None))
        value = writes.value.float()
        heads, keys = value.shape[2], key.shape[-1]
        query, key = (
            l2_normalized(x.float(), arguments).repeat_interleave(heads // x.shape[2], dim=2)
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
        if arguments.get("D") is not None:  # Mamba-2's skip connection
            skip = arguments["D"].float().unsqueeze(-1)
            output = output + skip * arguments["hidden_states"].float()
        return output.to(dtype), state if self.axis == -2 else state.mT

    def _run_in_pieces(
        self,
        call: Callable[[], Any],
        arguments: dict[str, Any],
        key_shape: torch.Size,
        state_name: str,
        return_name: str,
    ) -> Any:
        """Call the kernel for `piece` tokens at a time, each time from the rounded state; returns
        what one call of it would. `call()` runs it with the present values of `arguments`, which
        this changes."""
        return_state = arguments[return_name]
        batch_and_time, time = key_shape[:2], key_shape[1]
        per_token = dict[str, Tensor]()
        for name, x in arguments.items():
            has_time = isinstance(x, Tensor) and x.dim() > 2 and x.shape[:2] == batch_and_time
            if has_time and name != state_name:
                per_token[name] = x
        outputs = []
        state = arguments[state_name]
        arguments[return_name] = True
        for start in range(0, time, self.storage.piece):
            tokens = slice(start, min(start + self.storage.piece, time))
            for name, x in per_token.items():
                arguments[name] = x[:, tokens]
            arguments[state_name] = state
            if "chunk_size" in arguments:  # a short piece is not padded to a full chunk
                smallest_chunk = 1 << (tokens.stop - tokens.start - 1).bit_length()
                arguments["chunk_size"] = min(arguments["chunk_size"], smallest_chunk)
            output, state = call()
            outputs.append(output)
            if isinstance(state, DeferredState):
                state_tensor = state.flush()
                state_tensor.copy_(self._round(state_tensor))
            else:
                state = self._round(state)
        output = torch.cat(outputs, dim=1)
        return (output, state) if return_state or state_name == "initial_state" else output

    def _round(self, state: Tensor) -> Tensor:
        return fake_quantize(state, self.storage.dtype, self.axis, self.generator)
