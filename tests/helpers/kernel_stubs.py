"""Stubs for fla, mamba_ssm and causal_conv1d: the real signatures, with naive recurrences.

The real packages need a GPU. `install` replaces them; call it before transformers imports modelling
code, which binds the kernels. Signatures: fla 0.6, mamba_ssm 2.2, causal_conv1d 1.5.
"""

import sys
from collections import Counter
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from helpers.recurrences import step_by_step

CALLS: Counter[str] = Counter()


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    CALLS["chunk_gated_delta_rule"] += 1
    return _delta_rule(q, k, v, g, beta, initial_state, use_qk_l2norm_in_kernel, output_final_state)


def fused_recurrent_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, gk: Tensor | None = None,
    gv: Tensor | None = None, beta: Tensor | None = None, scale: float | None = None,
    initial_state: Tensor | None = None, output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False, **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    CALLS["fused_recurrent_gated_delta_rule"] += 1
    assert g is not None and beta is not None
    return _delta_rule(q, k, v, g, beta, initial_state, use_qk_l2norm_in_kernel, output_final_state)


def _delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, initial: Tensor | None,
    normalize: bool, final: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """In float64; q and k [batch, time, heads, channels]."""
    dtype, q, k, v, g, beta = q.dtype, *(x.double() for x in (q, k, v, g, beta))
    if normalize:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    state = None if initial is None else initial.double()
    output, states = step_by_step(q, k, v, g=g, beta=beta, initial_state=state)
    return output.to(dtype), states[:, -1].float() if final else None


def mamba_chunk_scan_combined(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int,
    D: Tensor | None = None, z: Tensor | None = None, dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None, seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None, dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")), return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Any:  # fmt: skip
    CALLS["mamba_chunk_scan_combined"] += 1
    assert isinstance(chunk_size, int) and z is None
    step = dt.double() + (0.0 if dt_bias is None else dt_bias.double())
    step = (functional.softplus(step) if dt_softplus else step).clamp(*dt_limit)
    token, first = x.double(), None if initial_states is None else initial_states.double().mT
    output, states = step_by_step(
        C.double(), B.double(), step[..., None] * token, g=step * A.double(), scale=1.0,
        initial_state=first,
    )  # fmt: skip
    output = (output if D is None else output + token * D.double()[:, None]).to(x.dtype)
    return (output, states[:, -1].mT.float()) if return_final_states else output


def selective_state_update(
    state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None,
    z: Tensor | None = None, dt_bias: Tensor | None = None, dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    CALLS["selective_state_update"] += 1
    step = dt.double() + (0.0 if dt_bias is None else dt_bias.double())
    step = functional.softplus(step) if dt_softplus else step
    b, c = (m.double().repeat_interleave(x.shape[1] // m.shape[1], dim=1) for m in (B, C))
    new = state.double() * (step[..., None] * A.double()).exp()
    new = new + step[..., None] * b[:, :, None] * x.double()[..., None]
    state.copy_(new)
    read = torch.einsum("bhpn,bhn->bhp", new, c)
    read = read if D is None else read + x.double() * D.double()
    return (read if z is None else read * functional.silu(z.double())).to(x.dtype)


def mamba_split_conv1d_scan_combined(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("only in training mode, which nothing here is in")


def causal_conv1d_fn(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None, return_final_states: bool = False,
    final_states_out: Tensor | None = None, activation: str | None = None,
) -> Tensor:  # fmt: skip
    CALLS["causal_conv1d_fn"] += 1
    width = weight.shape[-1]
    out = functional.conv1d(x, weight[:, None], bias, padding=width - 1, groups=len(weight))
    return _activated(out[..., : x.shape[-1]], activation)


def causal_conv1d_update(
    x: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None,
    activation: str | None = None, cache_seqlens: Tensor | None = None,
    conv_state_indices: Tensor | None = None,
) -> Tensor:  # fmt: skip
    CALLS["causal_conv1d_update"] += 1
    inputs = torch.cat([conv_state, x], dim=-1)
    conv_state.copy_(inputs[..., -conv_state.shape[-1] :])
    out = functional.conv1d(inputs, weight[:, None], bias, groups=len(weight))
    return _activated(out[..., -x.shape[-1] :], activation)


def _activated(x: Tensor, activation: str | None) -> Tensor:
    assert activation in (None, "silu", "swish")
    return x if activation is None else functional.silu(x)


MODULES = {
    "fla.ops.gated_delta_rule": (chunk_gated_delta_rule, fused_recurrent_gated_delta_rule),
    "mamba_ssm.ops.triton.ssd_combined": (
        mamba_chunk_scan_combined,
        mamba_split_conv1d_scan_combined,
    ),
    "mamba_ssm.ops.triton.selective_state_update": (selective_state_update,),
    "causal_conv1d": (causal_conv1d_fn, causal_conv1d_update),
}


PACKAGES = ("fla", "mamba_ssm", "causal_conv1d")


def install(packages: tuple[str, ...] = PACKAGES) -> None:
    for path, functions in MODULES.items():
        parts = path.split(".")
        if parts[0] not in packages:
            continue
        for depth in range(1, len(parts) + 1):
            name = ".".join(parts[:depth])
            if name not in sys.modules:
                module = ModuleType(name)
                module.__spec__ = ModuleSpec(name, None, is_package=True)
                sys.modules[name] = module
                if depth > 1:
                    setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], module)
        for function in functions:
            setattr(sys.modules[path], function.__name__, function)
