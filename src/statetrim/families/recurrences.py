"""Reads state updates from the arguments of a kernel, so that analysis can recompute the states.

All recurrences follow one rule, in float64: `S = exp(g) S`, then `S = S + k (beta (v - S'k))'`, or
without `beta` `S = S + k v'`. `Family.recurrence` chooses the function that reads `v`, `g` and
`beta` from a call of the family's kernel.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class StateUpdates:
    """What a range of tokens writes to the state, except the keys; float64."""

    value: Tensor  # [batch, time, value heads, head_v_dim]
    log_decay: Tensor | None  # [batch, time, value heads, head_k_dim or 1]
    beta: Tensor | None  # [batch, time, value heads]; None: S = S + k v'


Recurrence = Callable[[Mapping[str, Any], slice], StateUpdates]
"""(kernel arguments by name, range of tokens) -> the updates of these tokens."""


def delta_rule(arguments: Mapping[str, Any], tokens: slice) -> StateUpdates:
    """The updates of `tokens` from the arguments of a DeltaNet, Gated DeltaNet or KDA kernel, as
    called by transformers, fla and statetrim.portable."""
    value = arguments["v"] if "v" in arguments else arguments["value"]
    beta = arguments["beta"][:, tokens].double()
    if arguments.get("use_beta_sigmoid_in_kernel"):
        beta = beta.sigmoid() * (2.0 if arguments.get("allow_neg_eigval") else 1.0)
    return StateUpdates(value[:, tokens].double(), _log_decay(arguments, tokens), beta)


def _log_decay(arguments: Mapping[str, Any], tokens: slice) -> Tensor | None:
    """The log decay [batch, time, value heads, head_k_dim or 1], computed from the raw gate where
    the kernel (of fla) would do so itself; None without `g`."""
    if arguments.get("g") is None:
        return None
    g: Tensor = arguments["g"][:, tokens].double()
    g = g.unsqueeze(-1) if g.dim() == 3 else g
    if not arguments.get("use_gate_in_kernel"):
        return g
    rate: Tensor = arguments["A_log"].double().exp().reshape(-1, 1)
    bias, bound = arguments.get("dt_bias"), arguments.get("lower_bound")
    gate = g if bias is None else g + bias.double().reshape(g.shape[2], -1)
    if bound is None:
        return -rate * functional.softplus(gate)
    return float(bound) * (rate * gate).sigmoid()


def mamba2(arguments: Mapping[str, Any], tokens: slice) -> StateUpdates:
    """The updates of `tokens` from the arguments of a Mamba-2 scan: `S = exp(dt A) S + B (dt x)'`,
    with B as the key and C as the query; the value is `dt x`, and there is no beta."""
    dt = arguments["dt"][:, tokens].double()
    if arguments.get("dt_bias") is not None:
        dt = dt + arguments["dt_bias"].double()
    if arguments.get("dt_softplus"):
        dt = functional.softplus(dt)
    dt_min, dt_max = arguments.get("dt_limit") or (0.0, float("inf"))
    dt = dt.clamp(dt_min, dt_max)
    value = arguments["hidden_states"][:, tokens].double() * dt.unsqueeze(-1)
    return StateUpdates(value, (dt * arguments["A"].double()).unsqueeze(-1), None)
