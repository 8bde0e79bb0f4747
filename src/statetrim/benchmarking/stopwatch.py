"""Time several functions in turns, so that noise affects all alike, and measure peak memory."""

import time
from collections.abc import Callable, Mapping
from statistics import quantiles
from typing import Any

import torch

CPU_TIME = "CPU time of one thread"
Work = Callable[[], object]


def time_in_turns(
    competitors: Mapping[str, Work],
    *,
    rounds: int,
    device: torch.device,
    min_seconds: float = 0.02,
    cycle: int = 1,
    warm_up: int = 2,
) -> dict[str, list[float]]:
    """Seconds per call of every competitor in each round, in alternating order. Each is called for
    about `min_seconds` a round, at most about 1,000 times, and a multiple of `cycle`, for work
    whose calls differ periodically."""
    repeats = {}
    for name, work in competitors.items():
        for _ in range(warm_up):
            work()
        seconds_per_call = max(_seconds_per_call(work, 1, device), 1e-7)
        repeats[name] = cycle * max(1, round(min(1000, min_seconds / seconds_per_call) / cycle))
    seconds: dict[str, list[float]] = {name: [] for name in competitors}
    for round_number in range(rounds):
        order = list(competitors)[:: 1 if round_number % 2 == 0 else -1]
        for name in order:
            seconds[name].append(_seconds_per_call(competitors[name], repeats[name], device))
    return seconds


def _seconds_per_call(work: Work, repeats: int, device: torch.device) -> float:
    """Mean seconds of `repeats` calls, by the clock that `clock_name` names."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event
        start_event, end_event = event(enable_timing=True), event(enable_timing=True)
        torch.cuda.synchronize(device)
        start_event.record()
        for _ in range(repeats):
            work()
        end_event.record()
        torch.cuda.synchronize(device)
        return float(start_event.elapsed_time(end_event)) / 1e3 / repeats
    clock = time.process_time if clock_name(device) == CPU_TIME else time.perf_counter
    start = clock()
    for _ in range(repeats):
        work()
    return (clock() - start) / repeats


def clock_name(device: torch.device) -> str:
    """CPU time with a single thread, which other programs on a busy machine do not affect."""
    if device.type == "cuda":
        return "CUDA events"
    return CPU_TIME if torch.get_num_threads() == 1 else "wall time"


def median_and_quartiles(values: list[float]) -> tuple[float, tuple[float, float]]:
    if len(values) == 1:
        return values[0], (values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return median, (low, high)


def measure_added_peak_memory(work: Work, device: torch.device) -> int | None:
    """The peak of allocated memory that `work` adds, in bytes; None without a GPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before
