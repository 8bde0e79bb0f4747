"""The configs of fla's DeltaNet, Gated DeltaNet and KDA."""

from __future__ import annotations

from typing import Any

from transformers.configuration_utils import PreTrainedConfig


class PortableConfig(PreTrainedConfig):
    """The fields and defaults of fla's configs; `fuse_*` fields are kept but have no effect here.

    transformers makes a dataclass of every config; fields that it does not know are kept as well.
    """

    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    attn_mode: str = "chunk"
    hidden_size: int = 2048
    expand_v: float = 1.0
    use_short_conv: bool = True
    allow_neg_eigval: bool = False
    conv_size: int = 4
    num_heads: int = 16
    max_position_embeddings: int = 2048
    hidden_ratio: int | None = 4
    intermediate_size: int | None = None
    hidden_act: str = "swish"
    num_hidden_layers: int = 24
    norm_eps: float = 1e-6
    attn: dict[str, Any] | list[dict[str, Any]] | None = None
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    fuse_norm: bool = True
    fuse_swiglu: bool = True
    fuse_cross_entropy: bool = True
    use_l2warp: bool = False
    vocab_size: int = 32000
    attnres_block_size: int | None = None


class DeltaNetConfig(PortableConfig):
    model_type = "delta_net"

    expand_k: float = 1.0
    use_gate: bool = False
    use_beta: bool = True
    use_output_norm: bool = True
    qk_norm: str = "l2"
    qk_activation: str = "silu"
    fuse_linear_cross_entropy: bool = False


class GatedDeltaNetConfig(PortableConfig):
    model_type = "gated_deltanet"

    expand_v: float = 2.0
    use_gate: bool = True
    head_dim: int = 256
    num_heads: int = 6
    num_v_heads: int | None = None
    num_hidden_layers: int = 21
    fuse_linear_cross_entropy: bool = False
    output_gate_activation: str = "swish"


class KDAConfig(PortableConfig):
    model_type = "kda"

    safe_gate: bool = False
    lower_bound: float | None = None
    head_dim: int = 128
    num_v_heads: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.safe_gate and self.lower_bound is None:
            raise ValueError("lower_bound must be set when safe_gate is true (-5 is usual).")
        super().__post_init__(**kwargs)
