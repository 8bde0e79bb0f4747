"""Runs fla's own mixers on a CPU, with PyTorch functions instead of Triton kernels.

Recurrences are fla's naive ones. `compare` measures the differences between a pruned mixer and the
original with the removed channels masked at the kernel, and between decoding and prefill.
"""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .masking import _wrap

TOKENS = 12
TYPES = (
    "precond_gated_deltanet", "precond_kda", "mom", "rwkv6", "lightnet", "log_linear_mamba2",
)  # fmt: skip


def install() -> None:
    from fla.layers import lightnet, log_linear_mamba2, mom, precond_kda, rwkv6
    from fla.layers import precond_gated_deltanet as precond
    from fla.modules import FusedRMSNormGated, GroupNorm, RMSNorm, ShortConvolution
    from fla.modules.layernorm_gated import RMSNormGated

    ShortConvolution.forward = _short_convolution
    FusedRMSNormGated.forward = _gated_norm
    RMSNorm.forward = lambda self, x: _rms(x, self.weight, self.eps)
    RMSNormGated.forward = _norm_of_gated
    GroupNorm.forward = _group_norm
    log_linear_mamba2.LogLinearMamba2.forward = _log_linear_forward
    for module, names, kernel in (
        (precond, "chunk_{0} fused_recurrent_{0}".format("precond_gated_delta_rule"), _precond),
        (precond_kda, "chunk_precond_kda fused_recurrent_precond_kda", _precond_kda),
        (precond_kda, "fused_kda_gate", _kda_gate),
        (mom, "chunk_gated_delta_rule fused_recurrent_gated_delta_rule", _gated_delta_rule),
        (rwkv6, "chunk_rwkv6 fused_recurrent_rwkv6", _rwkv6),
        (rwkv6, "token_shift", lambda x, cu: functional.pad(x, (0, 0, 1, -1)) - x),
        (lightnet, "chunk_lightnet fused_recurrent_lightnet", _lightnet),
        (lightnet, "rms_norm_swish_gate_linear", _norm_gate_linear),
        (log_linear_mamba2, "chunk_log_linear_attn", _log_linear),
    ):
        for name in names.split():
            setattr(module, name, kernel)


@torch.no_grad()
def compare(original: Any, cut: Any, plan: Any, before: Any) -> dict[str, float]:
    """Largest differences between two mixers of layer 0, relative to the output's deviation."""
    generator = torch.Generator().manual_seed(1)
    for mixer in (original, cut):
        mixer.eval()
        if hasattr(mixer, "gate_fn"):
            mixer.gate_fn = functional.silu
        if hasattr(mixer, "causal_conv1d_fn"):
            mixer.causal_conv1d_fn, mixer.causal_conv1d_update = _conv, _conv_update
            mixer.backend = "triton"
    x = torch.randn(2, TOKENS, original.hidden_size, generator=generator)
    after, decoded, unmasked = _run(cut, x), _decode(cut, x), _run(original, x)
    with _masked(original, plan, before):
        masked, masked_decoded = _run(original, x), _decode(original, x)
    deviation = masked.std()
    return {
        "sliced": float((after - masked).abs().max() / deviation),
        "decoded": float((after - decoded).abs().max() / deviation),
        "sliced decoded": float((decoded - masked_decoded).abs().max() / deviation),
        "cut": float((after - unmasked).abs().max() / deviation),
    }


def _run(mixer: Any, x: Tensor) -> Tensor:
    output: Tensor = mixer(hidden_states=x)[0]
    return output


@contextmanager
def _masked(mixer: Any, plan: Any, before: Any) -> Iterator[None]:
    code: Any = sys.modules[type(mixer).__module__]
    names = [n for n in vars(code) if n.startswith(("chunk_", "fused_recurrent_", "hmamba_chunk"))]
    kernels = {name: getattr(code, name) for name in names}
    kernels.pop("chunk_log_linear_attn", None)  # called by the kernel that is wrapped
    values = max(plan.counts("value").values()) if "value" in plan.axes else before.head_v_dim
    shrink = (values / before.head_v_dim) ** 0.5
    output: Any = mixer.o_proj if hasattr(mixer, "o_proj") else mixer.out_proj
    hook = output.register_forward_pre_hook(lambda _, args: (args[0] * shrink,))
    try:
        for name, kernel in kernels.items():
            setattr(code, name, _wrap(kernel, plan, itertools.repeat(0), before))
        yield
    finally:
        hook.remove()
        for name, kernel in kernels.items():
            setattr(code, name, kernel)


def _decode(mixer: Any, x: Tensor) -> Tensor:
    from fla.models.utils import Cache

    cache, outputs = Cache(), []
    mixer.layer_idx = 0
    for step in range(x.shape[1]):
        output = mixer(hidden_states=x[:, step : step + 1], past_key_values=cache, use_cache=True)
        outputs.append(output[0])
    return torch.cat(outputs, 1)


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None, **_: Any) -> Any:
    """Causal convolution of `x` [batch, time, channels]; weight [channels, width]."""
    padded = functional.pad(x.mT, (weight.shape[-1] - 1, 0))
    out = functional.conv1d(padded, weight.unsqueeze(1), bias, groups=len(weight)).mT
    return functional.silu(out) if activation else out, None


def _conv_update(
    x: Tensor, cache: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    """One token [batch, channels]; the cache is [batch, channels, width]."""
    cache = torch.cat([cache[..., 1:], x.unsqueeze(-1)], -1)
    out = (cache * weight).sum(-1) + (0.0 if bias is None else bias)
    return functional.silu(out) if activation else out, cache


def _short_convolution(
    self: Any, x: Tensor, cache: Tensor | None = None, output_final_state: bool = False,
    cu_seqlens: Tensor | None = None, **_: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    weight, width = self.weight.squeeze(1), self.weight.shape[-1]
    outputs, states = [], []
    for number, sequence in enumerate(_sequences(x, cu_seqlens)):
        rows = slice(number, number + 1) if cu_seqlens is not None else slice(None)
        past = x.new_zeros(len(sequence), width, x.shape[-1]) if cache is None else cache[rows].mT
        inputs = torch.cat([past, sequence], 1)
        outputs.append(_conv(inputs, weight, self.bias, self.activation)[0][:, width:])
        states.append(inputs[:, -width:].mT)
    output = torch.cat(outputs, 1 if cu_seqlens is not None else 0)
    return output, torch.cat(states) if output_final_state else None


def _sequences(x: Tensor, cu_seqlens: Tensor | None) -> list[Tensor]:
    """`x` [batch, time, ...] as one item, or the sequences that are packed in its only row."""
    if cu_seqlens is None:
        return [x]
    ends = [int(end) for end in cu_seqlens]
    return [x[:, start:end] for start, end in itertools.pairwise(ends)]


def _rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def _gated_norm(self: Any, x: Tensor, g: Tensor) -> Tensor:
    gate = g.sigmoid() if self.activation == "sigmoid" else functional.silu(g)
    return _rms(x, self.weight, self.eps) * gate


def _norm_of_gated(self: Any, x: Tensor, z: Tensor) -> Tensor:
    x = x * functional.silu(z)
    grouped = x.reshape(*x.shape[:-1], -1, self.group_size)
    normed: Tensor = _rms(grouped, None, self.eps).flatten(-2) * self.weight
    return normed


def _group_norm(self: Any, x: Tensor) -> Tensor:
    flat = x.flatten(0, 1)
    normed = functional.group_norm(flat, self.num_groups, self.weight, self.bias, self.eps)
    return normed.view_as(x)


def _norm_gate_linear(
    x: Tensor, g: Tensor, weight: Tensor, bias: Tensor, linear: Tensor, _: Any
) -> Tensor:
    return functional.linear(_rms(x, weight, 1e-6) * functional.silu(g), linear)


def _precond(
    q: Tensor, k: Tensor, v: Tensor, *, use_qk_l2norm_in_kernel: bool, **kwargs: Any
) -> Any:
    from fla.ops.precond_gated_delta_rule import naive_recurrent_precond_gated_delta_rule as naive

    assert use_qk_l2norm_in_kernel  # the naive function always normalizes
    return naive(q, k, v, **kwargs)


def _precond_kda(
    q: Tensor, k: Tensor, v: Tensor, *, use_qk_l2norm_in_kernel: bool, cu_seqlens: None,
    use_gate_in_kernel: bool = False, safe_gate: bool = False, lower_bound: None = None,
    **kwargs: Any,
) -> Any:  # fmt: skip
    from fla.ops.precond_kda.naive import naive_recurrent_precond_kda

    assert use_qk_l2norm_in_kernel and not use_gate_in_kernel
    q, k = (functional.normalize(x, dim=-1) for x in (q, k))
    return naive_recurrent_precond_kda(q, k, v, **kwargs)


def _kda_gate(g: Tensor, A_log: Tensor, dt_bias: Tensor, lower_bound: None) -> Tensor:
    from fla.ops.kda.gate import naive_kda_gate

    gate: Tensor = naive_kda_gate(g, A_log, dt_bias)
    return gate


def _gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor,
    initial_state: Tensor | None, output_final_state: bool, cu_seqlens: Tensor | None, **_: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    q, k = (functional.normalize(x, dim=-1) for x in (q, k))
    sequences = [_sequences(x, cu_seqlens) for x in (q, k, v, beta, g)]
    outputs, states = [], []
    for number, sequence in enumerate(zip(*sequences, strict=True)):
        rows = slice(number, number + 1) if cu_seqlens is not None else slice(None)
        state = None if initial_state is None else initial_state[rows].mT
        o, h = naive_recurrent_gated_delta_rule(*sequence, None, state, True)
        outputs.append(o)
        states.append(h.mT)
    output = torch.cat(outputs, 1 if cu_seqlens is not None else 0)
    return output, torch.cat(states) if output_final_state else None


def _rwkv6(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float,
    initial_state: Tensor | None, output_final_state: bool, cu_seqlens: None,
) -> Any:  # fmt: skip
    from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6

    r, k, v, w = (x.transpose(1, 2) for x in (r, k, v, w))
    o, h = naive_recurrent_rwkv6(r, k, v, w, u, scale, initial_state, output_final_state)
    return o.transpose(1, 2), h


def _lightnet(
    q: Tensor, k: Tensor, v: Tensor, initial_state: Any, output_final_state: bool, **_: Any
) -> Any:
    from fla.ops.gla.naive import naive_recurrent_gla

    state, z0 = (None, None) if initial_state is None else initial_state
    first = k.new_full(k[:, :1].shape, -1e4) if z0 is None else z0
    z = torch.cat([first, k], 1).logcumsumexp(1)
    k, g = (k - z[:, 1:]).exp(), z[:, :-1] - z[:, 1:]
    o, h = naive_recurrent_gla(q, k, v, g, None if state is None else state.mT, True)
    return o, (h.mT if output_final_state else None, z[:, -1:])


def _log_linear_forward(
    self: Any, hidden_states: Tensor, past_key_values: Any = None, use_cache: bool = False
) -> tuple[Tensor]:
    """Replaces fla's forward, which requires a GPU."""
    from fla.layers.utils import get_layer_cache, update_layer_cache

    last = get_layer_cache(self, past_key_values)
    output, conv, state = self.cuda_kernels_forward(hidden_states, last, use_cache)
    update_layer_cache(self, past_key_values, recurrent_state=state, conv_state=conv, offset=1)
    return (output,)


def _log_linear(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, level_scales: Tensor,
    initial_state: tuple[Tensor, ...] | None, output_final_state: bool, scale: float, **_: Any,
) -> Any:  # fmt: skip
    """The state is the list of all inputs so far."""
    from fla.ops.log_linear_attn.naive import naive_log_linear_attn

    new_inputs = (q, k, v, g, level_scales)
    past_inputs = initial_state or tuple(x[:, :0] for x in new_inputs)
    all_inputs = tuple(torch.cat(pair, 1) for pair in zip(past_inputs, new_inputs, strict=True))
    return naive_log_linear_attn(*all_inputs, scale)[:, -q.shape[1] :], all_inputs
