"""Delta-rule recurrences in plain PyTorch: in chunks (prefill and training) and for decoding.

Shapes: `q`, `k` [batch, time, key heads, head_k_dim]; `v` [batch, time, value heads, head_v_dim];
`beta` [batch, time, value heads]; `g`, the log of the decay, [batch, time, value heads] or, for a
decay per key channel, [batch, time, value heads, head_k_dim]; states [batch, value heads,
head_k_dim, head_v_dim]. Value head `u` reads key head `u // (value heads / key heads)`.

One step, for each value head, with `scale` = `head_k_dim ** -0.5` unless given:

    S = exp(g) * S                      (gated rules)
    S = S + k (beta * (v - S'k))'       (delta rules; plain linear attention adds k v')
    o = scale * S'q

Arithmetic is float32, or float64 for float64 inputs, whatever the dtype of the model; states are
returned in that dtype and outputs in the dtype of `v`.
"""

from .chunked import chunk_delta_rule, chunk_gated_delta_rule, chunk_kda, chunk_states
from .decoding import (
    fused_recurrent_delta_rule,
    fused_recurrent_gated_delta_rule,
    fused_recurrent_kda,
)
from .terms import l2_normalized

__all__ = [
    "chunk_delta_rule",
    "chunk_gated_delta_rule",
    "chunk_kda",
    "chunk_states",
    "fused_recurrent_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "fused_recurrent_kda",
    "l2_normalized",
]
