"""Pure-PyTorch models that load and save fla checkpoints unchanged, on any PyTorch device."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .delta_net import DeltaNetConfig, DeltaNetForCausalLM, DeltaNetModel
from .gated_deltanet import GatedDeltaNetConfig, GatedDeltaNetForCausalLM, GatedDeltaNetModel
from .kda import KDAConfig, KDAForCausalLM, KDAModel

__all__ = [
    "DeltaNetConfig",
    "DeltaNetForCausalLM",
    "DeltaNetModel",
    "GatedDeltaNetConfig",
    "GatedDeltaNetForCausalLM",
    "GatedDeltaNetModel",
    "KDAConfig",
    "KDAForCausalLM",
    "KDAModel",
    "register",
]

MODELS = (
    (DeltaNetConfig, DeltaNetModel, DeltaNetForCausalLM),
    (GatedDeltaNetConfig, GatedDeltaNetModel, GatedDeltaNetForCausalLM),
    (KDAConfig, KDAModel, KDAForCausalLM),
)


def register() -> None:
    """Register these models with transformers' Auto classes. Meant for machines where fla cannot
    run: fla registers the same `model_type`s, and the last registration is used."""
    for config, model, causal_lm in MODELS:
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, model, exist_ok=True)
        AutoModelForCausalLM.register(config, causal_lm, exist_ok=True)
