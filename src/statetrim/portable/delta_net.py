"""DeltaNet: fla's `delta_net` checkpoints, unchanged, in plain PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .causal_lm import PortableForCausalLM, PortableModel
from .config import PortableConfig
from .deferred import DeferredState
from .delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
from .mixer import HeadSizes, Kernel, Mixer, State, zero_padding


class DeltaNetConfig(PortableConfig):
    """The fields and defaults of fla's config."""

    model_type = "delta_net"

    expand_k: float = 1.0
    use_gate: bool = False
    use_beta: bool = True
    use_output_norm: bool = True
    qk_norm: str = "l2"
    qk_activation: str = "silu"
    fuse_linear_cross_entropy: bool = False


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": lambda x: x,  # already applied with the convolution
    "identity": lambda x: x,
    "relu": F.relu,
    "elu": lambda x: F.elu(x) + 1,
}


class DeltaNet(Mixer):
    """The mixer of DeltaNet: the delta rule without decay."""

    def __init__(self, config: DeltaNetConfig, layer_idx: int) -> None:
        if config.qk_norm not in ("l2", "sum"):
            raise ValueError(f"qk_norm={config.qk_norm!r} is not supported, only 'l2' and 'sum'.")
        if config.qk_activation not in ACTIVATIONS:
            raise ValueError(
                f"qk_activation={config.qk_activation!r} is not supported, "
                f"only {', '.join(ACTIVATIONS)}."
            )
        heads = HeadSizes(
            config.num_heads,
            config.num_heads,
            _width_per_head("expand_k", config.expand_k, config),
            _width_per_head("expand_v", config.expand_v, config),
        )
        super().__init__(config, heads, layer_idx, config.qk_activation)
        self.activation = ACTIVATIONS[config.qk_activation]
        self.qk_norm = config.qk_norm
        self.use_beta = config.use_beta
        if config.use_beta:
            self.b_proj = nn.Linear(config.hidden_size, config.num_heads, bias=False)
        self.add_output_norm(config, "swish" if config.use_gate else None)

    def run_recurrence(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        valid: Tensor | None,
        past_state: State | None,
    ) -> tuple[Tensor, State]:
        q, k = self.activation(q), self.activation(k)
        if self.qk_norm == "sum":
            q, k = (F.normalize(x, p=1.0, dim=-1, eps=1e-6) for x in (q, k))
        beta = self.b_proj(x).sigmoid() if self.use_beta else torch.ones_like(q[..., 0])
        beta = zero_padding(beta * self.beta_scale, valid)
        kernel: Kernel = chunk_delta_rule
        if isinstance(past_state, DeferredState):
            kernel = fused_recurrent_delta_rule
        return kernel(
            q, k, v, beta=beta, initial_state=past_state, output_final_state=True,
            use_qk_l2norm_in_kernel=self.qk_norm == "l2",
        )  # fmt: skip


def _width_per_head(field: str, expand: float, config: DeltaNetConfig) -> int:
    """`hidden_size * expand / num_heads` channels; raises ValueError if that is not whole, with the
    name `field`."""
    size = config.hidden_size * expand
    if not math.isclose(size, round(size)) or round(size) % config.num_heads:
        raise ValueError(
            f"{field}={expand} times hidden_size={config.hidden_size} must be a multiple of "
            f"num_heads={config.num_heads}."
        )
    return round(size) // config.num_heads


class DeltaNetModel(PortableModel):
    config_class = DeltaNetConfig
    mixer = staticmethod(DeltaNet)


class DeltaNetForCausalLM(PortableForCausalLM):
    config_class = DeltaNetConfig
    backbone = DeltaNetModel
