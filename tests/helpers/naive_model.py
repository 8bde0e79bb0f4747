"""DeltaNet and Gated DeltaNet of fla as whole models in float64, by the equations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from helpers.recurrences import step_by_step


class NaiveModel:
    """Reads one token of every sequence at a time; shares no code with any library's layers."""

    def __init__(self, config: Any, tensors: Mapping[str, Tensor]) -> None:
        self.config, self.weights = config, {name: x.double() for name, x in tensors.items()}
        self.states: dict[int, Tensor] = {}  # layer -> [batch, heads, keys, values]

    def logits(self, ids: Tensor) -> Tensor:
        """[batch, time, vocabulary] of ids [batch, time]."""
        x = self.weights["model.embeddings.weight"][ids]
        for layer in range(self.config.num_hidden_layers):
            block = {
                name.removeprefix(f"model.layers.{layer}."): weight
                for name, weight in self.weights.items()
                if name.startswith(f"model.layers.{layer}.")
            }
            x = x + self._mixed(layer, block, self._norm(x, block["attn_norm.weight"]))
            y = self._norm(x, block["mlp_norm.weight"])
            gate, up = (y @ block[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ block["mlp.down_proj.weight"].T
        head = self.weights.get("lm_head.weight", self.weights["model.embeddings.weight"])
        logits: Tensor = self._norm(x, self.weights["model.norm.weight"]) @ head.T
        return logits

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        scale: Tensor = (x.square().mean(-1, keepdim=True) + self.config.norm_eps).rsqrt()
        return x * scale * weight

    def _mixed(self, layer: int, block: Mapping[str, Tensor], x: Tensor) -> Tensor:
        heads, (batch, time, _) = self.config.num_heads, x.shape
        q, k, v = (self._convolved(block, name, x).view(batch, time, heads, -1) for name in "qkv")
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        beta = (x @ block["attn.b_proj.weight"].T).sigmoid()
        log_decay = None
        if "attn.A_log" in block:
            step = F.softplus(x @ block["attn.a_proj.weight"].T + block["attn.dt_bias"])
            log_decay = -block["attn.A_log"].exp() * step
        output, states = step_by_step(q, k, v, g=log_decay, beta=beta)
        self.states[layer] = states[:, -1]
        y = self._norm(output, block["attn.o_norm.weight"])
        if "attn.g_proj.weight" in block:
            y = y * F.silu(x @ block["attn.g_proj.weight"].T).view_as(y)
        return y.flatten(2) @ block["attn.o_proj.weight"].T

    def _convolved(self, block: Mapping[str, Tensor], name: str, x: Tensor) -> Tensor:
        """The projection after its short convolution and SiLU."""
        filters = block[f"attn.{name}_conv1d.weight"].squeeze(1)  # [channels, width]
        projected = F.pad(x @ block[f"attn.{name}_proj.weight"].T, (0, 0, filters.shape[1] - 1, 0))
        windows = projected.unfold(1, filters.shape[1], 1)  # [batch, time, channels, width]
        return F.silu((windows * filters).sum(-1))
