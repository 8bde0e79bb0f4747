"""The most memory that a piece of work took on top of what was held before it."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_of(work: Callable[[], object], device: torch.device) -> int | None:
    """Bytes; None where the system cannot tell."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        _give_back_free_memory()
        _RESET.write_text("5")  # Linux: forget the high-water mark so far
        before = _kib("VmRSS")
        work()
        return max(0, _kib("VmHWM") - before) * 1024
    except (OSError, StopIteration):
        return None


def _give_back_free_memory() -> None:
    """Else work that reuses what was freed before it would seem to take nothing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        gc.collect()
        trim(0)


def _kib(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
