"""transformers 5: saving OLMo-Hybrid splits its fused convolution into equal thirds.

python transformers_equal_thirds.py
"""

import sys
import tempfile

sys.modules["fla"] = sys.modules["causal_conv1d"] = None  # their kernels need a GPU

from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM, OlmoHybridConfig, __version__  # noqa: E402

config = OlmoHybridConfig(
    vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1,
    layer_types=["linear_attention", "full_attention"],
    linear_key_head_dim=12, linear_value_head_dim=16,
)  # fmt: skip
model = AutoModelForCausalLM.from_config(config)
print("transformers", __version__)
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    saved = load_file(f"{folder}/model.safetensors")
for letter, width in (("q", 4 * 12), ("k", 4 * 12), ("v", 4 * 16)):
    name = f"model.layers.0.linear_attn.{letter}_conv1d.weight"
    print(f"{letter}_conv1d: {saved[name].shape[0]} rows saved, {width} channels in the model")
