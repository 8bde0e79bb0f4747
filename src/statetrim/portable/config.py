"""The config that fla's DeltaNet, Gated DeltaNet and KDA share."""

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
