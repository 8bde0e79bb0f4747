"""What a model remembers between calls: one recurrent state and three convolution tails a layer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from .deferred import DeferredState


class RecurrentLayer(CacheLayerMixin):
    """`recurrent_state` [batch, value heads, head_k_dim, head_v_dim], float32 in any model;
    `conv_state` the last inputs [batch, channels, width] of the q, k and v convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self._state: Tensor | DeferredState | None = None
        self.conv_state: tuple[Tensor, ...] = ()
        self.seen_tokens = 0

    @property
    def recurrent_state(self) -> Tensor | None:
        return self._state.flush() if isinstance(self._state, DeferredState) else self._state

    def decoding_state(self) -> DeferredState | None:
        """The state in the form that decoding advances in place."""
        if isinstance(self._state, Tensor):
            self._state = DeferredState(self._state)
        return self._state

    def store(
        self, state: Tensor | DeferredState, conv_state: tuple[Tensor, ...], tokens: int
    ) -> None:
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
    """One `RecurrentLayer` per decoder layer; `cache[i]` reads like fla's."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[RecurrentLayer() for _ in range(num_layers)])

    def __getitem__(self, layer: int) -> dict[str, Tensor | tuple[Tensor, ...] | None]:
        layer_cache = self.layers[layer]
        return {
            "recurrent_state": layer_cache.recurrent_state,
            "conv_state": layer_cache.conv_state,
        }
