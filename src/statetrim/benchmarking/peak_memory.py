"""The most memory that a piece of work took on top of what was held before it."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_peak_memory(work: Callable[[], object], device: torch.device) -> int | None:
    """Bytes; None where the system cannot tell."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        _release_free_memory()
        _RESET.write_text("5")  # Linux: forget the high-water mark so far
        before = _read_status_kib("VmRSS")
        work()
        return max(0, _read_status_kib("VmHWM") - before) * 1024
    except (OSError, StopIteration):
        return None


def _release_free_memory() -> None:
    """Else work that reuses what was freed before it would seem to take nothing."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if malloc_trim is not None:
        gc.collect()
        malloc_trim(0)


def _read_status_kib(name: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
