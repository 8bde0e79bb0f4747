"""What a run of the kit needs, before it starts: hours, memory and disk, from the config alone."""

from __future__ import annotations

import importlib.util
import math
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import statetrim as st
from plan import Kit, Step, steps
from statetrim import portable
from statetrim.runtime.stored_weights import empty_model

_FLOPS = {"cuda": 100e12, "cpu": 50e9}
"""Operations per second that a run reaches: a GPU in bfloat16, a few cores in float32."""

_DISK_BYTES_PER_SECOND = 1e9
_MIN_SECONDS = 20.0  # of any command: imports, reading the model
_SECONDS_PER_LAYER = (
    0.001  # of one generated token in transformers, which starts kernels one by one
)


@dataclass(frozen=True)
class Costs:
    """Of a model on one device."""

    parameters: int
    active: float  # parameters that compute on a token (of experts, the share that is routed)
    text: Any  # transformers' config of the language model
    pass_seconds: float  # of `Kit.tokens` tokens

    @staticmethod
    def estimate(model: st.Checkpoint, kit: Kit, device: str = "") -> Costs:
        """On `device`, or where the kit runs."""
        portable.register()  # fla's model types
        gpu = (kit.device or "cuda").startswith("cuda") and torch.cuda.is_available()
        with tempfile.TemporaryDirectory() as staging:
            source = model.path if model.path.is_file() else model.path / "config.json"
            shutil.copyfile(source, Path(staging) / "config.json")
            module = empty_model(model, Path(staging))
        module.tie_weights()
        text = module.config.get_text_config()
        experts = getattr(text, "num_experts", None) or getattr(text, "n_routed_experts", None)
        routed = getattr(text, "num_experts_per_tok", 0) / experts if experts else 1.0
        head, embeddings = module.get_output_embeddings(), module.get_input_embeddings()
        total, active = 0, float(head.weight.numel() if head.weight is embeddings.weight else 0)
        for name, parameter in module.named_parameters():
            total += parameter.numel()
            if "embed" not in name:
                active += parameter.numel() * (routed if ".experts." in name else 1.0)
        flops = _FLOPS[device or ("cuda" if gpu else "cpu")]
        return Costs(total, active, text, 2 * active * kit.tokens / flops)

    @property
    def weights(self) -> int:
        """Bytes, in 16 bits."""
        return 2 * self.parameters

    def memory(self, kit: Kit) -> int:
        """Bytes on the GPU in recovery: two models, the logits of a batch in float32 with their
        softmax, and 16 activations per layer that the gradient needs."""
        tokens = kit.batch_size * kit.length
        activations: int = 32 * tokens * self.text.num_hidden_layers * self.text.hidden_size
        logits: int = 8 * tokens * self.text.vocab_size
        return 2 * self.weights + logits + activations

    def seconds(self, step: Step, kit: Kit) -> float:
        """Reading the model, passes, tokens generated one by one, and copies of the weights."""
        tokens = math.ceil(kit.limit / kit.batch_size) * step.generated
        generating: float = tokens * self.text.num_hidden_layers * _SECONDS_PER_LAYER
        copying = 2 * step.copies * self.weights / _DISK_BYTES_PER_SECOND  # read and written
        return _MIN_SECONDS + step.passes * self.pass_seconds + generating + copying


def print_estimate(kit: Kit, budget: float) -> None:
    """Print time, memory and disk for one GPU, and the steps that the budget has no room for."""
    model = st.open(kit.model, weights=False)
    costs = Costs.estimate(model, kit, "cuda")
    head = model.geometry.head_k_dim, model.geometry.head_v_dim
    plan = steps(kit, head, vllm=importlib.util.find_spec("vllm") is not None)
    needed = [costs.seconds(step, kit) for step in plan]
    disk = costs.weights * (1 + sum(step.copies for step in plan))
    print(f"{costs.parameters / 1e9:.2f} billion parameters, {costs.active / 1e9:.2f} per token")
    print(f"time, at {_FLOPS['cuda'] / 1e12:.0f} TFLOP/s: {sum(needed) / 3600:.1f} h + recovery")
    print(f"memory of the GPU: {math.ceil(costs.memory(kit) / 2**30)} GiB")
    print(f"disk: {math.ceil(disk / 2**30)} GiB; download: {math.ceil(costs.weights / 2**30)} GiB")
    spent = 0.0
    for step, seconds in zip(plan, needed, strict=True):
        spent += seconds
        fits = "" if spent <= budget else "  (beyond the budget)"
        print(f"  {step.name:<32}{seconds / 60:8.1f} min{fits}")
