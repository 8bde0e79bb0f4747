"""Pure-PyTorch models that load and save fla checkpoints unchanged, on any PyTorch device."""

from __future__ import annotations

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from .configs import DeltaNetConfig, GatedDeltaNetConfig, KDAConfig
from .models import (
    DeltaNetForCausalLM,
    DeltaNetModel,
    GatedDeltaNetForCausalLM,
    GatedDeltaNetModel,
    KDAForCausalLM,
    KDAModel,
)

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

_CAUSAL_LMS = (DeltaNetForCausalLM, GatedDeltaNetForCausalLM, KDAForCausalLM)


def register() -> None:
    """Register these models with transformers' Auto classes. Meant for machines where fla cannot
    run: fla registers the same `model_type`s, and the last registration is used."""
    for causal_lm in _CAUSAL_LMS:
        config = causal_lm.config_class
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModel.register(config, causal_lm.backbone, exist_ok=True)
        AutoModelForCausalLM.register(config, causal_lm, exist_ok=True)
