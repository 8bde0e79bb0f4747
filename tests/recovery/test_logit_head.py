"""The head's logits compared with those of the stock models."""

from typing import Any

import pytest
import torch

import statetrim as st
from helpers import tiny
from statetrim.recovery.distillation import get_logit_head
from statetrim.runtime.loading import load_live


@pytest.mark.parametrize("model_type", [*tiny.MODEL_TYPES, "minicpmv4_6", "nemotron_h_omni"])
def test_logits_of_the_head_are_the_stock_ones(model_type: str, checkpoint: Any) -> None:
    """granitemoehybrid divides its logits and falcon_h1 multiplies them; here by large factors."""
    live_model = load_live(checkpoint(model_type))
    module = live_model.module
    if model_type == "granitemoehybrid":
        module.config.logits_scaling = 8.0
    if model_type == "falcon_h1":
        module.model.lm_head_multiplier = module.config.lm_head_multiplier = 0.25
    head = get_logit_head(live_model)
    ids = torch.randint(1, tiny.VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden = live_model.hidden_states(ids)
        head_logits = head.logits(hidden, head.weight, head.bias)
        torch.testing.assert_close(head_logits, module(input_ids=ids, use_cache=False).logits)


def test_an_unknown_way_to_logits_is_refused(checkpoint: Any) -> None:
    live = load_live(checkpoint("granitemoehybrid"))
    real_forward = live.module.forward

    def squared(**inputs: Any) -> Any:
        result = real_forward(**inputs)
        result.logits = result.logits.square()
        return result

    live.module.forward = squared
    with pytest.raises(st.StatetrimError, match="in a way that statetrim does not know"):
        get_logit_head(live)
