"""Peak memory of a function call, in addition to what was allocated before it."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def measure_peak_memory(work: Callable[[], object], device: torch.device) -> int | None:
    """Run `work` and return its peak in bytes, in addition to what was in use before.

    On a GPU it is allocated memory, else resident memory of this process. None if the system does
    not report that (other than Linux); `work` may then not have run.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    try:
        _release_free_memory()
        _RESET.write_text("5")  # Linux: reset the high-water mark
        resident = _read_status_kib("VmRSS")
        work()
        peak = _read_status_kib("VmHWM")
    except OSError:
        return None
    return None if resident is None or peak is None else max(0, peak - resident) * 1024


def _release_free_memory() -> None:
    """Return freed memory to the system: work that reused it would seem to need none."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
    if malloc_trim is not None:
        gc.collect()
        malloc_trim(0)


def _read_status_kib(name: str) -> int | None:
    """A field of /proc/self/status, in KiB; None without such a field.

    Raises OSError where there is no such file.
    """
    for line in _STATUS.read_text().splitlines():
        field, _, value = line.partition(":")
        if field == name:
            return int(value.split()[0])
    return None
