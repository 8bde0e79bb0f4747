"""What a run of the kit needs, before it starts: hours, memory and disk, from the config alone."""

from __future__ import annotations

import importlib.util
import math
import shutil
import tempfile
from pathlib import Path

import torch

import statetrim as st
from plan import Kit, Step, steps
from statetrim.runtime.stored_weights import empty_model

_FLOPS = {"cuda": 100e12, "cpu": 50e9}
"""Operations per second that a run reaches: a GPU in bfloat16, a few cores in float32."""

_DISK_BYTES_PER_SECOND = 1e9
_MIN_SECONDS = 20.0  # of any command: imports, reading the model


def parameters(model: st.Checkpoint) -> tuple[int, float]:
    """All parameters, and those that compute on a token (of experts, the share that is routed)."""
    with tempfile.TemporaryDirectory() as staging:
        source = model.path if model.path.is_file() else model.path / "config.json"
        shutil.copyfile(source, Path(staging) / "config.json")
        module = empty_model(model, Path(staging))
    text = module.config.get_text_config()
    experts = getattr(text, "num_experts", None) or getattr(text, "n_routed_experts", None)
    routed = getattr(text, "num_experts_per_tok", 0) / experts if experts else 1.0
    total, active = 0, 0.0
    for name, parameter in module.named_parameters():
        total += parameter.numel()
        if "embed" not in name:
            active += parameter.numel() * (routed if ".experts." in name else 1.0)
    return total, active


def seconds_of_pass(model: st.Checkpoint, kit: Kit) -> float:
    """Estimated seconds of `kit.tokens` tokens through the model, on the device asked for."""
    gpu = (kit.device or "cuda").startswith("cuda") and torch.cuda.is_available()
    _, active = parameters(model)
    return 2 * active * kit.tokens / _FLOPS["cuda" if gpu else "cpu"]


def print_estimate(kit: Kit, budget: float) -> None:
    """Print time, memory and disk for one GPU, and the steps that the budget has no room for."""
    model = st.open(kit.model)
    total, active = parameters(model)
    weights = 2 * total  # 16 bits
    pass_seconds = 2 * active * kit.tokens / _FLOPS["cuda"]
    head = model.geometry.head_k_dim, model.geometry.head_v_dim
    plan = steps(kit, head, vllm=importlib.util.find_spec("vllm") is not None)
    needed = [_seconds(step, pass_seconds, weights) for step in plan]
    disk = weights * (1 + sum(step.copies for step in plan))
    print(f"{total / 1e9:.2f} billion parameters, {active / 1e9:.2f} compute on a token")
    print(f"time, at {_FLOPS['cuda'] / 1e12:.0f} TFLOP/s: {sum(needed) / 3600:.1f} h + recovery")
    print(f"memory of the GPU: {math.ceil(2.3 * weights / 2**30)} GiB (two copies and activations)")
    print(f"disk: {math.ceil(disk / 2**30)} GiB; download: {math.ceil(weights / 2**30)} GiB")
    spent = 0.0
    for step, seconds in zip(plan, needed, strict=True):
        spent += seconds
        fits = "" if spent <= budget else "  (beyond the budget)"
        print(f"  {step.name:<32}{seconds / 60:8.1f} min{fits}")


def _seconds(step: Step, pass_seconds: float, weights: int) -> float:
    copying = 2 * step.copies * weights / _DISK_BYTES_PER_SECOND  # read and written
    return _MIN_SECONDS + step.passes * pass_seconds + copying
