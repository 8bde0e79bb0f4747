"""Estimate time, memory and disk of the steps of a run before it starts.

The machine's speed is measured with a short matrix product; the rest follows from the checkpoint's
headers. Estimates are right within a factor of two or three.
"""

import os
import time
from dataclasses import dataclass
from math import prod

import torch

from ..artifacts.state_sizes import weight_bytes
from ..families.contract import text_config
from ..runtime.placement import Placement
from ..storage.checkpoint import Checkpoint

_DISK_BYTES_PER_SECOND = 1e9  # a common SSD; not measured
_EFFICIENCY = 0.3  # fraction of the matrix product's speed that a model reaches
_FLOPS_PER_STATE_ELEMENT = 40  # and token, of the recurrence: with PyTorch's kernels on a CPU
_SECONDS_PER_LAYER = 2e-3  # per batch of any size: the time to launch kernels
_WEIGHT_FRACTION = 0.7  # of free memory; the rest is for activations
PROCESS_BYTES = 600 * 2**20  # memory of Python, torch and transformers without a model


@dataclass(frozen=True)
class Step:
    """One step of a run, with its estimated cost."""

    name: str
    does: str
    seconds: float
    memory: int = 0  # bytes, at the peak
    disk: int = 0  # bytes written, which stay until the run ends


@dataclass(frozen=True)
class Machine:
    """Speed and free memory of the device that models run on."""

    flops: float  # floating-point operations per second
    memory: int  # free bytes where the model runs
    device: str

    @staticmethod
    def measure(placement: Placement) -> "Machine":
        """Time a short matrix product on the device of `placement` and read its free memory."""
        device = placement.input_device.type
        return Machine(_measure_flops(device), free_memory(placement), device)


def free_memory(placement: Placement | None = None) -> int:
    """Bytes free where models run: on one GPU, in main memory (all of it if this is not Linux), or
    with a device map the sum over GPUs of what weights may take."""
    placement = placement or Placement()
    if placement.device_map is not None:
        return sum(placement.gpu_memory.values())
    if placement.input_device.type == "cuda":
        return int(torch.cuda.mem_get_info(placement.input_device)[0])
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):  # not Linux: all memory of the machine
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def needs_streaming(model: Checkpoint, copies: int, memory: int) -> bool:
    """Whether `copies` of the weights take too much of `memory` bytes."""
    return copies * weight_bytes(model) > _WEIGHT_FRACTION * memory


def reading_seconds(
    model: Checkpoint, tokens: int, batch_size: int, length: int, machine: Machine
) -> float:
    """Seconds of a forward pass over `tokens`, plus streaming if the weights do not fit."""
    batches = max(1, tokens // (batch_size * length))
    flops = 2 * _active_parameters(model) + _FLOPS_PER_STATE_ELEMENT * model.geometry.state_numel
    seconds = flops * tokens / (_EFFICIENCY * machine.flops)
    layers = max(model.geometry.layers, default=0) + 1  # up to the last linear one
    seconds += batches * layers * _SECONDS_PER_LAYER
    if needs_streaming(model, 1, machine.memory):
        seconds += weight_bytes(model) / _DISK_BYTES_PER_SECOND
    return seconds


def copying_seconds(nbytes: int) -> float:
    """Seconds to read and write a checkpoint of `nbytes`."""
    return 2 * nbytes / _DISK_BYTES_PER_SECOND


def _active_parameters(model: Checkpoint) -> float:
    """Parameters that compute on a token: of the experts of an MoE only the routed share, and no
    embeddings."""
    config = text_config(model.config)
    experts_per_token = config.get("num_experts_per_tok")
    experts = config.get("num_experts") or config.get("num_local_experts")
    active_fraction = 1.0
    if isinstance(experts_per_token, int) and isinstance(experts, int) and experts > 0:
        active_fraction = experts_per_token / experts
    parameters = 0.0
    for name, tensor in model.logical_tensors.items():
        if "embed_tokens" not in name and "embeddings" not in name:
            parameters += prod(tensor.shape) * (active_fraction if ".experts." in name else 1.0)
    return parameters


def _measure_flops(device: str, seconds: float = 0.1, width: int = 1024) -> float:
    """Floating-point operations per second of a square matrix product, timed for `seconds`."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    matrix = torch.randn(width, width, device=device).to(dtype)
    matrix @ matrix  # warm-up
    products, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        matrix @ matrix
        if device == "cuda":
            torch.cuda.synchronize()
        products += 1
    return 2 * width**3 * products / (time.perf_counter() - start)
