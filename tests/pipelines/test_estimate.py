"""The estimate counts the tokens that a run reads."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook

import statetrim as st
from helpers import tiny
from statetrim.evaluation.evaluate import evaluate


@pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths
def test_evaluation_is_estimated_for_the_tokens_that_models_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Original, cut, refitted cut and random cut, on text and all settings of recall."""
    model = st.open(tiny.build("qwen3_5_text", tmp_path / "model", vocab_size=1024))
    text = tiny.write_text(tmp_path / "text.jsonl", 8000)
    options: Any = {"text": text, "to": "6x4", "tokens": 512, "length": 64, "limit": 2}
    steps = st.estimate(model, **options)
    (step,) = (step for step in steps if step.name == "evaluate")
    tokens, run = 0, evaluate.run

    def count(module: torch.nn.Module, args: Any) -> None:
        nonlocal tokens
        if type(module).__name__.endswith("RMSNormGated"):  # of every linear layer
            tokens += args[0].numel() // args[0].shape[-1]  # and value head

    def counted(*args: Any) -> Any:
        with register_module_forward_pre_hook(count):
            return run(*args)

    monkeypatch.setattr(evaluate, "run", counted)
    st.trim(model, **options, out=tmp_path / "out")
    tokens //= len(model.geometry.layers) * model.geometry.num_v_heads
    assert step.tokens >= 0.9 * tokens, "for the most samples that may be taken"
