"""The recurrences in chunks: for prefill and training, differentiable."""

import torch
from torch import Tensor

from .terms import (
    arithmetic_dtype,
    decay_by_channel,
    initial_state_or_zeros,
    l2_normalized_pair,
    resolve_scale,
)

CHUNK = 64

# exp(-800) is 0 even in float64: smaller log-decays change nothing, and -inf gives inf - inf.
LOWEST_LOG_DECAY = -800.0


def chunk_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The delta rule in chunks, differentiable.

    Returns the output [batch, time, value heads, head_v_dim] and, with `output_final_state`, the
    final state (else None).
    """
    if use_qk_l2norm_in_kernel:
        q, k = l2_normalized_pair(q, k)
    out, states = _run_chunked(q, k, v, None, beta, scale, initial_state, CHUNK)
    return out, states[-1] if output_final_state else None


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The delta rule in chunks, with log decay `g` [batch, time, value heads], or [batch, time,
    value heads, head_k_dim] in Kimi delta attention; returns what `chunk_delta_rule` does."""
    if use_qk_l2norm_in_kernel:
        q, k = l2_normalized_pair(q, k)
    out, states = _run_chunked(q, k, v, decay_by_channel(g), beta, scale, initial_state, CHUNK)
    return out, states[-1] if output_final_state else None


chunk_kda = chunk_gated_delta_rule


def chunk_states(
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    initial_state: Tensor | None = None,
    chunk_size: int = CHUNK,
) -> Tensor:
    """The states at the end of every chunk [batch, chunks, value heads, head_k_dim, head_v_dim].

    Covers all rules of this module: `g` is [batch, time, value heads, head_k_dim or 1] or None;
    without `beta` nothing is erased, as in linear attention and, with a decay, Mamba-2.
    """
    return torch.stack(_run_chunked(k, k, v, g, beta, None, initial_state, chunk_size)[1], 1)


def _run_chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, list[Tensor]]:
    """The output and the states at chunk ends. `g` [batch, time, value heads, head_k_dim or 1].

    Within a chunk, with `c` the log decay summed from its start and `S` the state before it:

        (I + tril(beta K K' * decay, -1)) U = beta (V - exp(c) K S)
        O = exp(c) Q S + tril(Q K' * decay) U
        S_next = exp(c_last) S + (exp(c_last - c) K)' U

    All but the two products with S are independent of other chunks and run for all chunks at once.
    """
    out_dtype, time = v.dtype, v.shape[1]
    dtype = arithmetic_dtype(v)
    # A power of two, because `_channel_decayed_products` halves chunks; no longer than needed.
    chunk_size = min(chunk_size, 1 << (time - 1).bit_length())
    group = v.shape[2] // k.shape[2]
    q = _split_into_chunks(q.to(dtype) * resolve_scale(q, scale), chunk_size)
    q = q.repeat_interleave(group, 1)
    k = _split_into_chunks(k.to(dtype), chunk_size).repeat_interleave(group, 1)
    v = _split_into_chunks(v.to(dtype), chunk_size)
    state = initial_state_or_zeros(k, v, initial_state)

    if g is None:
        decay_from_start = decay_to_end = chunk_decay = None
        key_products, query_products = k @ k.mT, q @ k.mT
    else:
        # float64: differences of these sums must stay accurate after a strong decay.
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
