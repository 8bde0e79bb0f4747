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

from .masking import _wrap, for_all_heads

TOKENS = 12
HEADS_AND_CHANNELS = ("comba", "gated_deltaproduct", "gla")
"""Types that allow both, and that nothing but fla runs."""
TYPES = ("precond_gated_deltanet", "precond_kda", "rwkv6", *HEADS_AND_CHANNELS)


def install() -> None:
    from fla.layers import comba, gated_deltaproduct, gla, precond_kda, rwkv6
    from fla.layers import precond_gated_deltanet as precond
    from fla.modules import FusedRMSNormGated, GroupNorm, RMSNorm, ShortConvolution

    ShortConvolution.forward = _short_convolution
    FusedRMSNormGated.forward = _gated_norm
    RMSNorm.forward = lambda self, x: _rms(x, self.weight, self.eps)
    GroupNorm.forward = _group_norm
    for module, names, kernel in (
        (precond, "chunk_{0} fused_recurrent_{0}".format("precond_gated_delta_rule"), _precond),
        (precond_kda, "chunk_precond_kda fused_recurrent_precond_kda", _precond_kda),
        (precond_kda, "fused_kda_gate", _kda_gate),
        (rwkv6, "chunk_rwkv6 fused_recurrent_rwkv6", _rwkv6),
        (comba, "chunk_comba fused_recurrent_comba", _comba),
        (gated_deltaproduct, "fused_recurrent_gated_delta_rule", _gated_delta),
        (gla, "fused_recurrent_gla", _gla),
        (rwkv6, "token_shift", lambda x, cu: functional.pad(x, (0, 0, 1, -1)) - x),
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
    names = [n for n in vars(code) if n.startswith(("chunk_", "fused_recurrent_"))]
    kernels = {name: getattr(code, name) for name in names}
    values = max(plan.counts("value").values()) if "value" in plan.axes else before.head_v_dim
    columns = torch.full(
        (before.num_v_heads, before.head_v_dim), (values / before.head_v_dim) ** 0.5
    )
    if "head" in plan.axes:
        kept_heads = plan.axes["head"].kept[0].flatten().tolist()
        columns[[head for head in range(before.num_v_heads) if head not in kept_heads]] = 0
        plan = for_all_heads(plan, before)
    hook = mixer.o_proj.register_forward_pre_hook(lambda _, args: (args[0] * columns.flatten(),))
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


def _short_convolution(
    self: Any, x: Tensor, cache: Tensor | None = None, output_final_state: bool = False, **_: Any
) -> tuple[Tensor, Tensor | None]:
    width = self.weight.shape[-1]
    past = x.new_zeros(len(x), width, x.shape[-1]) if cache is None else cache.mT
    inputs = torch.cat([past, x], 1)
    taken = inputs[:, 1:].mT  # of a token and the width - 1 before it
    output = functional.conv1d(taken, self.weight, self.bias, groups=x.shape[-1]).mT
    output = output if self.activation is None else functional.silu(output)
    return output, inputs[:, -width:].mT if output_final_state else None


def _rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def _gated_norm(self: Any, x: Tensor, g: Tensor) -> Tensor:
    gate = g.sigmoid() if self.activation == "sigmoid" else functional.silu(g)
    return _rms(x, self.weight, self.eps) * gate


def _group_norm(self: Any, x: Tensor) -> Tensor:
    flat = x.flatten(0, 1)
    normed = functional.group_norm(flat, self.num_groups, self.weight, self.bias, self.eps)
    return normed.view_as(x)


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


def _rwkv6(
    r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float,
    initial_state: Tensor | None, output_final_state: bool, cu_seqlens: None,
) -> Any:  # fmt: skip
    from fla.ops.rwkv6.recurrent_naive import naive_recurrent_rwkv6

    r, k, v, w = (x.transpose(1, 2) for x in (r, k, v, w))
    o, h = naive_recurrent_rwkv6(r, k, v, w, u, scale, initial_state, output_final_state)
    return o.transpose(1, 2), h


def _comba(
    q: Tensor, k: Tensor, v: Tensor, p: Tensor, g: Tensor, beta: Tensor,
    use_qk_l2norm_in_kernel: bool, cu_seqlens: None, **kwargs: Any,
) -> Any:  # fmt: skip
    from fla.ops.comba.naive import naive_recurrent_comba

    assert use_qk_l2norm_in_kernel
    group = v.shape[2] // k.shape[2]
    q, k, p = (functional.normalize(x, dim=-1).repeat_interleave(group, 2) for x in (q, k, p))
    return naive_recurrent_comba(q, k, v, p, beta, g, **kwargs)


def _gated_delta(
    q: Tensor, k: Tensor, *, use_qk_l2norm_in_kernel: bool, cu_seqlens: None, **kwargs: Any
) -> Any:
    from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule

    assert use_qk_l2norm_in_kernel
    q, k = (functional.normalize(x, dim=-1) for x in (q, k))
    return naive_recurrent_gated_delta_rule(q, k, **kwargs)


def _gla(
    q: Tensor, k: Tensor, v: Tensor, gk: Tensor, state_v_first: bool, cu_seqlens: None,
    **kwargs: Any,
) -> Any:  # fmt: skip
    from fla.ops.gla.naive import naive_recurrent_gla

    return naive_recurrent_gla(q, k, v, gk, **kwargs)
