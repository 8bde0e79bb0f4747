"""How a kernel's arguments write the state, so that the analysis can walk it again.

Every recurrence is one rule, in float64: `S = exp(g) S`, then `S = S + k (beta (v - S'k))'`, or
without `beta` `S = S + k v'`. A family names the function that reads `v`, `g` and `beta` from what
its kernel is called with (`Family.recurrence`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Writes:
    """What some tokens write to the state besides their keys, float64."""

    value: Tensor  # [batch, time, value heads, head_v_dim]
    log_decay: Tensor | None  # [batch, time, value heads, head_k_dim or 1]
    beta: Tensor | None  # [batch, time, value heads]; None: keys and values are simply added


Recurrence = Callable[[Mapping[str, Any], slice], Writes]
"""From a kernel's arguments by name, and the tokens wanted, to what these write."""


def delta_rule(given: Mapping[str, Any], tokens: slice) -> Writes:
    """DeltaNet, Gated DeltaNet and KDA, of transformers, fla and portable alike."""
    value = given["v"] if "v" in given else given["value"]
    beta = given["beta"][:, tokens].double()
    if given.get("use_beta_sigmoid_in_kernel"):
        beta = beta.sigmoid() * (2.0 if given.get("allow_neg_eigval") else 1.0)
    return Writes(value[:, tokens].double(), _log_decay(given, tokens), beta)


def _log_decay(given: Mapping[str, Any], tokens: slice) -> Tensor | None:
    """fla's kernels may be handed the raw gate."""
    if given.get("g") is None:
        return None
    g: Tensor = given["g"][:, tokens].double()
    g = g.unsqueeze(-1) if g.dim() == 3 else g
    if not given.get("use_gate_in_kernel"):
        return g
    rate: Tensor = given["A_log"].double().exp().reshape(-1, 1)
    bias, bound = given.get("dt_bias"), given.get("lower_bound")
    raw = g if bias is None else g + bias.double().reshape(g.shape[2], -1)
    if bound is None:
        return -rate * functional.softplus(raw)
    return float(bound) * (rate * raw).sigmoid()


def mamba2(given: Mapping[str, Any], tokens: slice) -> Writes:
    """`S = exp(dt A) S + B (dt x)'`; B writes, C reads, and value heads share them in groups."""
    step = given["dt"][:, tokens].double()
    if given.get("dt_bias") is not None:
        step = step + given["dt_bias"].double()
    if given.get("dt_softplus"):
        step = functional.softplus(step)
    lowest, highest = given.get("dt_limit") or (0.0, float("inf"))
    step = step.clamp(lowest, highest)
    value = given["hidden_states"][:, tokens].double() * step.unsqueeze(-1)
    return Writes(value, (step * given["A"].double()).unsqueeze(-1), None)
