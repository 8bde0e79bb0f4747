"""The parts around the recurrence: norm, MLP, convolution, rows of a batch, and the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache, CacheLayerMixin

from .kernels import DeferredState


class RMSNorm(nn.Module):
    """RMS norm over the last dimension, times an activation (SiLU or sigmoid) of a gate if one is
    given; computed in float32 (float64 for float64). `weight` [size]."""

    def __init__(self, size: int, eps: float, gate_activation: str | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps
        self.activation = torch.sigmoid if gate_activation == "sigmoid" else F.silu

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """In the shape and dtype of `x`, which `gate` has too."""
        x_float = x if x.dtype == torch.float64 else x.float()
        out = F.rms_norm(x_float, x_float.shape[-1:], self.weight.to(x_float.dtype), self.eps)
        if gate is not None:
            out = out * self.activation(gate.to(x_float.dtype))
        return out.to(x.dtype)


class GatedMLP(nn.Module):
    """SwiGLU. Default width: `hidden_ratio * 2 / 3` times hidden size, rounded up to a multiple of
    256."""

    def __init__(
        self, hidden_size: int, hidden_ratio: int | None, intermediate_size: int | None
    ) -> None:
        super().__init__()
        if intermediate_size is None:
            target_size = int(hidden_size * (4 if hidden_ratio is None else hidden_ratio) * 2 / 3)
            intermediate_size = 256 * ((target_size + 255) // 256)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class ShortConvolution(nn.Conv1d):
    """Depthwise and causal, with fla's cache layout: `weight` [channels, 1, width], `bias`
    [channels] or None; then SiLU if `activation`."""

    def __init__(
        self, channels: int, width: int, bias: bool = False, activation: str | None = "silu"
    ) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)
        self.activation = activation

    def forward(  # type: ignore[override]
        self, x: Tensor, lengths: Tensor | None = None, cache: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns outputs of the shape of `x` [batch, time, channels], and the next cache
        [batch, channels, width].

        Only the first `lengths[i]` tokens of row i are valid; the cache ends with the last of them.
        """
        width = self.kernel_size[0]
        past = x.new_zeros(x.shape[0], x.shape[2], width) if cache is None else cache.to(x.dtype)
        inputs = torch.cat([past.mT, x], 1)  # channels last: contiguous copies
        if x.shape[1] == 1:  # decoding: a weighted sum takes a quarter of the time of conv1d
            sum_dtype = torch.promote_types(x.dtype, torch.float32)  # as conv1d accumulates
            taps = self.weight[:, 0].mT.to(sum_dtype).contiguous()
            y = (inputs[:, 1:].to(sum_dtype) * taps).sum(1, keepdim=True)
            y = (y if self.bias is None else y + self.bias).to(x.dtype)
        else:
            y = F.conv1d(inputs[:, 1:].mT, self.weight, self.bias, groups=x.shape[2]).mT
        if self.activation is not None:
            y = F.silu(y)
        if lengths is None:
            # Cloned: a view would keep the inputs of the whole prompt in memory.
            return y, inputs[:, -width:].clone().mT
        window = lengths.view(-1, 1, 1) + torch.arange(width, device=x.device).view(1, -1, 1)
        return y, inputs.gather(1, window.expand(-1, -1, x.shape[2])).mT


@dataclass(frozen=True)
class SequenceRows:
    """Positions of each row's tokens in a batch [batch, time, ...] viewed as [batch * time, ...].

    `index` [rows, length] points into the flattened batch; `valid` [rows, length] is False past the
    end of a row. A recurrence that ignores invalid tokens gives the same outputs and states as each
    sequence alone, wherever the padding was.
    """

    index: Tensor
    valid: Tensor

    @property
    def lengths(self) -> Tensor:
        """Number of valid tokens per row, [rows]."""
        return self.valid.sum(-1)

    def gather(self, x: Tensor) -> Tensor:
        """[batch, time, channels] -> [rows, length, channels]; arbitrary past the end of a row."""
        return x.flatten(0, 1)[self.index]

    def scatter(self, rows: Tensor, batch: int, time: int) -> Tensor:
        """[rows, length, channels] -> [batch, time, channels], zero at padding."""
        flat = rows.new_zeros(batch * time, rows.shape[-1])
        flat = flat.index_put((self.index[self.valid],), rows[self.valid])
        return flat.view(batch, time, -1)


def sequence_rows(
    attention_mask: Tensor | None, cu_seqlens: Tensor | None, time: int
) -> SequenceRows | None:
    """The rows of a batch, or None without padding and packing: by a mask [batch, time] with 0 at
    padding, or the boundaries [sequences + 1] of sequences concatenated in one row. Of a mask that
    covers cached tokens as well, the last `time` columns are used."""
    if cu_seqlens is not None:
        starts, lengths = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
        steps = torch.arange(int(lengths.max()), device=cu_seqlens.device)
        valid = steps < lengths.unsqueeze(-1)
        return SequenceRows(torch.where(valid, starts.unsqueeze(-1) + steps, 0), valid)
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise ValueError(
            "attention_mask must be [batch, time] with 0 for padding, got shape "
            f"{list(attention_mask.shape)}."
        )
    real = attention_mask[:, -time:].bool()
    if bool(real.all()):
        return None
    order = real.logical_not().to(torch.uint8).argsort(dim=-1, stable=True)
    start = torch.arange(len(real), device=real.device).unsqueeze(-1) * real.shape[1]
    return SequenceRows(start + order, real.gather(-1, order))


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
        """Replace the state, after its pending writes, and the convolution states."""
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
    """One `RecurrentLayer` per decoder layer."""

    def __init__(self, num_layers: int) -> None:
        super().__init__(layers=[RecurrentLayer() for _ in range(num_layers)])
