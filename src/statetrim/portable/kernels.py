"""Delta-rule recurrences in plain PyTorch: in chunks (prefill and training) and for decoding.

Shapes: `q`, `k` [batch, time, key heads, head_k_dim]; `v` [batch, time, value heads, head_v_dim];
`beta` [batch, time, value heads]; `g`, the log of the decay, [batch, time, value heads] or, for a
decay per key channel, [batch, time, value heads, head_k_dim]; states [batch, value heads,
head_k_dim, head_v_dim]. Value head `u` reads key head `u // (value heads / key heads)`.

One step, for each value head:

    S = exp(g) * S                      (gated rules)
    S = S + k (beta * (v - S'k))'       (delta rules; plain linear attention adds k v')
    o = S'q / sqrt(head_k_dim)

Arithmetic is float32, or float64 for float64 inputs, whatever the dtype of the model; states are
returned in that dtype and outputs in the dtype of `v`.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64

# exp(-800) is 0 even in float64: smaller log-decays change nothing, and -inf gives inf - inf.
LOWEST_LOG_DECAY = -800.0


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The delta rule in chunks, differentiable, with any decay or none.

    Returns the output [batch, time, value heads, head_v_dim] and, with `output_final_state`, the
    final state (else None).
    """
    if use_qk_l2norm_in_kernel:
        q, k = _l2_normalized_pair(q, k)
    out, states = _run_chunked(q, k, v, g, beta, initial_state, CHUNK)
    return out, states[-1] if output_final_state else None


def fused_recurrent_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    g: Tensor | None = None,
    initial_state: Tensor | DeferredState | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | DeferredState | None]:
    """The delta rule token by token, for decoding; without gradients. Returns the output [batch,
    time, value heads, head_v_dim] and the final state.

    A `DeferredState` as `initial_state` is updated in place and returned. A tensor is not changed,
    and the final state is None unless `output_final_state`.
    """
    out_dtype, dtype = v.dtype, _arithmetic_dtype(v)
    if use_qk_l2norm_in_kernel:
        q, k = _l2_normalized_pair(q, k)
    q, k, v, beta = (x.to(dtype) for x in (q, k, v, beta))
    group = v.shape[2] // k.shape[2]
    q = q.repeat_interleave(group, 2) * q.shape[-1] ** -0.5
    k = k.repeat_interleave(group, 2)
    decay = None if g is None else _by_channel(g).to(dtype).exp()
    if isinstance(initial_state, DeferredState):
        state = initial_state
    else:
        start_state = _initial_state_or_zeros(k.transpose(1, 2), v.transpose(1, 2), initial_state)
        state = DeferredState(start_state.clone() if start_state is initial_state else start_state)
    outputs = []
    for t in range(v.shape[1]):
        factor = None if decay is None else decay[:, t]
        outputs.append(state.step(q[:, t], k[:, t], v[:, t], beta[:, t], factor))
    out = torch.stack(outputs, 1).to(out_dtype)
    if state is initial_state:
        return out, state
    return out, state.flush() if output_final_state else None


# A mixer calls its kernel by the name that fla gives it.
chunk_gated_delta_rule = chunk_kda = chunk_delta_rule
fused_recurrent_gated_delta_rule = fused_recurrent_kda = fused_recurrent_delta_rule


def chunk_states(
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None = None,
    chunk_size: int = CHUNK,
) -> Tensor:
    """The states at the end of every chunk [batch, chunks, value heads, head_k_dim, head_v_dim].

    Covers all rules of this module; without `beta` nothing is erased, as in linear attention and,
    with a decay, Mamba-2.
    """
    return torch.stack(_run_chunked(k, k, v, g, beta, initial_state, chunk_size)[1], 1)


def _run_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, list[Tensor]]:
    """The output and the states at chunk ends.

    Within a chunk, with `c` the log decay summed from its start and `S` the state before it:

        (I + tril(beta K K' * decay, -1)) U = beta (V - exp(c) K S)
        O = exp(c) Q S + tril(Q K' * decay) U
        S_next = exp(c_last) S + (exp(c_last - c) K)' U

    All but the two products with S are independent of other chunks and run for all chunks at once.
    """
    out_dtype, time = v.dtype, v.shape[1]
    dtype = _arithmetic_dtype(v)
    # A power of two, because `_channel_decayed_products` halves chunks; no longer than needed.
    chunk_size = min(chunk_size, 1 << (time - 1).bit_length())
    group = v.shape[2] // k.shape[2]
    q = _split_into_chunks(q.to(dtype) * q.shape[-1] ** -0.5, chunk_size)
    q = q.repeat_interleave(group, 1)
    k = _split_into_chunks(k.to(dtype), chunk_size).repeat_interleave(group, 1)
    v = _split_into_chunks(v.to(dtype), chunk_size)
    state = _initial_state_or_zeros(k, v, initial_state)

    if g is None:
        decay_from_start = decay_to_end = chunk_decay = None
        key_products, query_products = k @ k.mT, q @ k.mT
    else:
        # float64: differences of these sums must stay accurate after a strong decay.
        g = _by_channel(g)
        log_decays = _split_into_chunks(g.double().clamp(min=LOWEST_LOG_DECAY), chunk_size)
        log_decays = log_decays.cumsum(-2)
        decay_from_start = log_decays.to(dtype).exp()
        decay_to_end = (log_decays[..., -1:, :] - log_decays).to(dtype).exp()
        chunk_decay = log_decays[..., -1, :].to(dtype).exp().unsqueeze(-1)
        key_products, query_products = _decayed_products(k, q, log_decays)
    query_products = query_products.tril()
    k_start = k if decay_from_start is None else k * decay_from_start
    q_start = q if decay_from_start is None else q * decay_from_start
    k_end = (k if decay_to_end is None else k * decay_to_end).mT

    if beta is None:
        writes, erases = v, None
    else:
        beta_chunks = _split_into_chunks(beta.to(dtype).unsqueeze(-1), chunk_size)
        system = beta_chunks * key_products
        solution = torch.linalg.solve_triangular(
            system, beta_chunks * torch.cat([v, k_start], -1), upper=False, unitriangular=True
        )
        writes, erases = solution.split([v.shape[-1], k.shape[-1]], -1)

    states_before, states, updates = [], [], []
    # unbind, not indexing: the backward of x[:, :, i] fills a tensor of the size of x per chunk.
    erase_chunks = None if erases is None else erases.unbind(2)
    for i, (write, key) in enumerate(zip(writes.unbind(2), k_end.unbind(2), strict=True)):
        states_before.append(state)
        update = write if erase_chunks is None else write - erase_chunks[i] @ state
        state = (state if chunk_decay is None else chunk_decay[:, :, i] * state) + key @ update
        updates.append(update)
        states.append(state)
    out = q_start @ torch.stack(states_before, 2) + query_products @ torch.stack(updates, 2)
    return out.flatten(2, 3)[:, :, :time].transpose(1, 2).to(out_dtype), states


def _decayed_products(k: Tensor, q: Tensor, log_decays: Tensor) -> tuple[Tensor, Tensor]:
    """`K K'` and `Q K'` [..., chunk, chunk] with entry (i, j), j <= i, decayed from token j to i;
    entries with j > i are arbitrary.

    `k`, `q` [..., chunk, dim]; `log_decays` [..., chunk, dim or 1] are cumulative sums.
    """
    if log_decays.shape[-1] > 1:
        key_products = _channel_decayed_products(k, k, log_decays)
        return key_products, _channel_decayed_products(q, k, log_decays)
    size = log_decays.shape[-2]
    future = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
    pair_decay = (log_decays - log_decays.mT).masked_fill(future, 0.0).to(k.dtype).exp()
    return (k @ k.mT) * pair_decay, (q @ k.mT) * pair_decay


def _channel_decayed_products(rows: Tensor, k: Tensor, log_decays: Tensor) -> Tensor:
    """`sum_c rows_ic k_jc exp(l_ic - l_jc)` for j <= i, else 0; l: log_decays; [..., chunk, chunk].

    The chunk is halved recursively. Each pair is computed in the block where i lies in the second
    half and j in the first; relative to the border of the halves both exponents are <= 0. Nothing
    overflows, however strong the decay, and no [chunk, chunk, dim] tensor is needed.
    """
    size = rows.shape[-2]
    if size == 1:
        return (rows * k).sum(-1, keepdim=True)
    (r1, r2), (k1, k2), (l1, l2) = (x.chunk(2, -2) for x in (rows, k, log_decays))
    border = l1[..., -1:, :]
    lower = (r2 * (l2 - border).to(r2.dtype).exp()) @ (k1 * (border - l1).to(k1.dtype).exp()).mT
    # Both halves in one call: log2(chunk) calls in all instead of one per token.
    inner = _channel_decayed_products(
        torch.stack([r1, r2]), torch.stack([k1, k2]), torch.stack([l1, l2])
    )
    upper = torch.cat([inner[0], torch.zeros_like(lower)], -1)
    return torch.cat([upper, torch.cat([lower, inner[1]], -1)], -2)


def _split_into_chunks(x: Tensor, size: int) -> Tensor:
    """[batch, time, heads, dim] -> [batch, heads, chunks, size, dim], padded with zeros at the end.

    Zero tokens do not change the state: they write nothing, and their log decay is 0.
    """
    padding = -x.shape[1] % size
    x = x.transpose(1, 2)
    if padding:
        x = torch.nn.functional.pad(x, (0, 0, 0, padding))
    return x.reshape(*x.shape[:2], -1, size, x.shape[-1])


def l2_normalized(x: Tensor, eps: float = 1e-6) -> Tensor:
    """`x / sqrt(|x|^2 + eps)` over the last dimension, as in fla's kernels."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


def _l2_normalized_pair(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """`q` and `k` normalized, in the dtype of the arithmetic."""
    dtype = _arithmetic_dtype(q)
    return l2_normalized(q.to(dtype)), l2_normalized(k.to(dtype))


def _arithmetic_dtype(x: Tensor) -> torch.dtype:
    """float64 for float64 inputs, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _initial_state_or_zeros(k: Tensor, v: Tensor, initial_state: Tensor | None) -> Tensor:
    """The initial state in the dtype of `v`, or zeros; `k`, `v` [batch, heads, ..., dim]."""
    if initial_state is not None:
        return initial_state.to(v.dtype)
    return v.new_zeros(v.shape[0], v.shape[1], k.shape[-1], v.shape[-1])


def _by_channel(g: Tensor) -> Tensor:
    """A log decay [batch, time, value heads, head_k_dim or 1]."""
    return g if g.dim() == 4 else g.unsqueeze(-1)


class DeferredState:
    """A state for decoding that collects writes and applies them together:
    `base_decay * base + pending_keys' pending_values` of each head.

    In eager PyTorch every operation on a state is a pass over memory. Each token must read the
    state, but sixteen tokens share one pass that decays it and one that writes to it.

    `base` [batch * heads, head_k_dim, head_v_dim] shares memory with the given tensor, which
    changes. `pending_keys` and `pending_values` [batch * heads, capacity, dim] hold `num_pending`
    writes; the keys include all decays since. `base_decay` [batch * heads, 1, head_k_dim or 1] is
    the decay of `base` since the last `flush`. All factors are <= 1, so nothing overflows.
    """

    def __init__(self, state: Tensor, capacity: int = 16) -> None:
        self.shape = state.shape
        self.base = state.flatten(0, 1)
        heads, head_k_dim, head_v_dim = self.base.shape
        self.pending_keys = state.new_empty(heads, capacity, head_k_dim)
        self.pending_values = state.new_empty(heads, capacity, head_v_dim)
        self.num_pending = 0
        self.base_decay: Tensor | None = None

    def flush(self) -> Tensor:
        """Apply pending decays and writes to `base`; returns the state [batch, heads, head_k_dim,
        head_v_dim], which shares memory with `base`."""
        if self.base_decay is not None:
            self.base.mul_(self.base_decay.mT)
        if self.num_pending:
            keys, values = self._pending()
            self.base.baddbmm_(keys.mT, values)
        self.num_pending, self.base_decay = 0, None
        return self.base.view(self.shape)

    def _pending(self) -> tuple[Tensor, Tensor]:
        """Views of the pending keys and values that are in use."""
        used = slice(self.num_pending)
        return self.pending_keys[:, used], self.pending_values[:, used]

    @torch.no_grad()
    def step(self, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None) -> Tensor:
        """One token of the delta rule: decay, write, read. Returns [batch, heads, head_v_dim].

        `q`, `k` [batch, heads, head_k_dim], `v` [batch, heads, head_v_dim], `beta` [batch, heads],
        `decay` [batch, heads, head_k_dim or 1] is a factor, not its log.
        """
        q, k, v = (x.flatten(0, 1).unsqueeze(1) for x in (q, k, v))
        beta = beta.flatten().view(-1, 1, 1)
        past_keys, past_values = self._pending()
        probes = torch.cat([beta * k, q], 1)
        base_probes = probes
        if decay is not None:
            factor = decay.flatten(0, 1).unsqueeze(1)
            decayed = factor.clone() if self.base_decay is None else self.base_decay.mul_(factor)
            self.base_decay = decayed
            past_keys.mul_(factor)
        if self.base_decay is not None:
            base_probes = probes * self.base_decay
        readouts = base_probes @ self.base
        if self.num_pending:
            readouts.baddbmm_(probes @ past_keys.mT, past_values)
        new_value = beta * v - readouts[:, :1]
        self.pending_keys[:, self.num_pending] = k[:, 0]
        self.pending_values[:, self.num_pending] = new_value[:, 0]
        self.num_pending += 1
        if self.num_pending == self.pending_keys.shape[1]:
            self.flush()
        out = readouts[:, 1:] + (k * q).sum(-1, keepdim=True) * new_value
        return out.view(*self.shape[:2], -1)
