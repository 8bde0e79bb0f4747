"""The models: decoder blocks, base model, language-model head, `generate()`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig
from transformers.generation import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from .configs import DeltaNetConfig, GatedDeltaNetConfig, KDAConfig
from .layers import GatedMLP, RecurrentCache, RMSNorm
from .mixers import DeltaNet, GatedDeltaNet, KimiDeltaAttention, Mixer


def check_supported(config: PreTrainedConfig) -> None:
    """Raises ValueError for fla options that the portable models do not implement."""
    if config.attn is not None:
        raise ValueError(
            "attn: softmax layers among the linear ones are not supported by statetrim.portable; "
            "this hybrid checkpoint needs fla on a GPU."
        )
    if config.attnres_block_size is not None:
        raise ValueError("attnres_block_size: attention residuals need fla on a GPU.")
    if config.hidden_act != "swish":
        raise ValueError(f"hidden_act={config.hidden_act!r} is not supported, only 'swish'.")
    if config.attn_mode not in ("chunk", "fused_recurrent"):
        raise ValueError(f"attn_mode={config.attn_mode!r} must be 'chunk' or 'fused_recurrent'.")


class Block(GradientCheckpointingLayer):
    """A decoder layer: mixer and MLP, each after a norm and with a residual connection."""

    def __init__(self, config: PreTrainedConfig, mixer: Mixer) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attn = mixer
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = GatedMLP(config.hidden_size, config.hidden_ratio, config.intermediate_size)

    def forward(self, hidden_states: Tensor, **kwargs: Any) -> Tensor:
        """[batch, time, hidden_size] -> [batch, time, hidden_size]."""
        hidden_states = hidden_states + self.attn(
            hidden_states=self.attn_norm(hidden_states), **kwargs
        )
        out: Tensor = hidden_states + self.mlp(self.mlp_norm(hidden_states))
        return out


class PortablePreTrainedModel(PreTrainedModel):
    """Class attributes and weight initialization that all portable models share."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _is_stateful = True
    _input_embed_layer = "embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, Mixer):
            module.initialize_gates()


class PortableModel(PortablePreTrainedModel):
    """Embeddings, decoder blocks and final norm; subclasses name the class of their `mixer`."""

    mixer: Any

    def __init__(self, config: PreTrainedConfig) -> None:
        check_supported(config)
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, config.pad_token_id)
        self.layers = nn.ModuleList(
            Block(config, self.mixer(config, i)) for i in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        cu_seqlens: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Takes `input_ids` [batch, time] or `inputs_embeds` [batch, time, hidden_size], and raises
        ValueError for both or neither, and for a cache that is not a `RecurrentCache`. `use_cache`
        is by default the config's, and False in training; `cu_seqlens`: see `Mixer.forward`."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("Give either input_ids or inputs_embeds.")
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if past_key_values is not None and not isinstance(past_key_values, RecurrentCache):
            raise ValueError(
                f"past_key_values must be a RecurrentCache, got {type(past_key_values).__name__}."
            )
        if use_cache and past_key_values is None:
            past_key_values = RecurrentCache(len(self.layers))
        hidden = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        layer_inputs = []
        for block in self.layers:
            layer_inputs.append(hidden)
            hidden = block(
                hidden,
                attention_mask=attention_mask,
                past_key_values=past_key_values,
                use_cache=use_cache,
                cu_seqlens=cu_seqlens,
            )
        hidden = self.norm(hidden)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden,
            past_key_values=past_key_values if use_cache else None,
            hidden_states=(*layer_inputs, hidden) if output_hidden_states else None,
        )


class PortableForCausalLM(PortablePreTrainedModel, GenerationMixin):
    """A `PortableModel` with a language-model head; subclasses set its class as `backbone`."""

    _tied_weights_keys = {"lm_head.weight": "model.embeddings.weight"}  # noqa: RUF012
    backbone: type[PortableModel]

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.model = self.backbone(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # so that `generate()` lets the model create a RecurrentCache

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: RecurrentCache | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [batch, time, vocab_size]; with `labels` [batch, time] (-100: ignored), the loss.

        Without labels, `logits_to_keep` > 0 computes logits only for that many last positions, and
        a tensor only for the positions in it. Other arguments are those of `PortableModel`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            **kwargs,
        )
        hidden = outputs.last_hidden_state
        if labels is None:
            if isinstance(logits_to_keep, int):
                hidden = hidden[:, -logits_to_keep:]
            else:
                hidden = hidden[:, logits_to_keep]
        logits, loss = self.lm_head(hidden), None
        if labels is not None:
            if self.config.use_l2warp:
                raise ValueError("use_l2warp: this training loss needs fla on a GPU.")
            loss = self.loss_function(
                logits, labels, self.vocab_size, num_items_in_batch=num_items_in_batch
            )
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )


class DeltaNetModel(PortableModel):
    config_class = DeltaNetConfig
    mixer = DeltaNet


class DeltaNetForCausalLM(PortableForCausalLM):
    config_class = DeltaNetConfig
    backbone = DeltaNetModel


class GatedDeltaNetModel(PortableModel):
    config_class = GatedDeltaNetConfig
    mixer = GatedDeltaNet


class GatedDeltaNetForCausalLM(PortableForCausalLM):
    config_class = GatedDeltaNetConfig
    backbone = GatedDeltaNetModel


class KDAModel(PortableModel):
    config_class = KDAConfig
    mixer = KimiDeltaAttention


class KDAForCausalLM(PortableForCausalLM):
    config_class = KDAConfig
    backbone = KDAModel


def register() -> None:
    """Register these models with transformers' Auto classes. Meant for machines where fla cannot
    run: fla registers the same `model_type`s, and the last registration is used."""
    for causal_lm in (DeltaNetForCausalLM, GatedDeltaNetForCausalLM, KDAForCausalLM):
        config = causal_lm.config_class
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, causal_lm.backbone, exist_ok=True)
        AutoModelForCausalLM.register(config, causal_lm, exist_ok=True)
