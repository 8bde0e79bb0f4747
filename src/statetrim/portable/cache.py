"""The cache of a model: one recurrent state and three convolution states per layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from .deferred import DeferredState


class RecurrentLayer(CacheLayerMixin):
    """The cache of one decoder layer.

    `recurrent_state` [batch, value heads, head_k_dim, head_v_dim] is float32 whatever the model's
    dtype; `conv_state` holds the last inputs [batch, channels, width] of the q, k and v
    convolutions; `seen_tokens` counts the tokens so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self._state: Tensor | DeferredState | None = None
        self.conv_state: tuple[Tensor, ...] = ()
        self.seen_tokens = 0

    @property
    def recurrent_state(self) -> Tensor | None:
        """The state with all pending writes of decoding applied; None before the first token."""
        return self._state.flush() if isinstance(self._state, DeferredState) else self._state

    def decoding_state(self) -> DeferredState | None:
        """The state as a `DeferredState`, which decoding updates in place; None before the first
        token. Converts the stored tensor without a copy."""
        if isinstance(self._state, Tensor):
            self._state = DeferredState(self._state)
        return self._state

    def store(
        self, state: Tensor | DeferredState, conv_state: tuple[Tensor, ...], tokens: int
    ) -> None:
        """Replace the states after `tokens` more tokens."""
        self._state, self.conv_state = state, conv_state
        self.seen_tokens += tokens
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        raise NotImplementedError("A recurrent layer keeps no keys and values.")

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("A recurrent layer keeps no keys and values.")

    def get_seq_length(self) -> int:
        return self.seen_tokens

    def get_max_length(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.seen_tokens + query_length, 0

    def _apply(self, function: Callable[[Tensor], Tensor]) -> None:
        """Replace the state, after its pending writes, and the convolution states with `function`
        of them."""
        state = self.recurrent_state
        self._state = None if state is None else function(state)
        self.conv_state = tuple(function(x) for x in self.conv_state)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._apply(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._apply(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._apply(lambda x: x[indices])

    def reset(self) -> None:
        self._apply(torch.zeros_like)
        self.seen_tokens = 0


class RecurrentCache(Cache):
    """One `RecurrentLayer` per decoder layer; `cache[i]` is a dictionary as in fla's cache."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[RecurrentLayer() for _ in range(num_layers)])

    def __getitem__(self, layer: int) -> dict[str, Tensor | tuple[Tensor, ...] | None]:
        cached = self.layers[layer]
        return {"recurrent_state": cached.recurrent_state, "conv_state": cached.conv_state}
