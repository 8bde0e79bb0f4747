"""Take the time of two or more things in turns, so that noise hits all of them alike."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import torch

CPU_TIME = "CPU time of one thread"
Work = Callable[[], object]


@dataclass(frozen=True)
class RoundTimes:
    """Seconds that each competitor took, round by round; the first is the baseline."""

    seconds: dict[str, list[float]]

    def rate(self, name: str, amount: float) -> tuple[float, tuple[float, float]]:
        """Median and quartiles of `amount` per second."""
        return _median_and_quartiles([amount / elapsed for elapsed in self.seconds[name]])

    def speedup(self, name: str) -> tuple[float, tuple[float, float]]:
        """Of `name` over the baseline, from ratios within a round."""
        baseline = next(iter(self.seconds.values()))
        return _median_and_quartiles(
            [before / after for before, after in zip(baseline, self.seconds[name], strict=True)]
        )


def time_in_turns(
    competitors: Mapping[str, Work],
    *,
    rounds: int,
    device: torch.device,
    min_seconds: float = 0.02,
    cycle: int = 1,
    warm_up: int = 2,
) -> RoundTimes:
    """Each round runs every competitor, in alternating order, long enough for the clock.

    Where not every call does the same, a round is a whole number of cycles of `cycle` calls.
    """
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
    return RoundTimes(seconds)


def _seconds_per_call(work: Work, repeats: int, device: torch.device) -> float:
    """Of one call: by events on a GPU, which knows best when it began and ended."""
    if device.type == "cuda":
        event: Any = torch.cuda.Event
        start_event, end_event = (event(enable_timing=True) for _ in range(2))
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
    """One thread's CPU time is its wall time on an idle machine, and on a busy one it does not
    count the turns of other programs."""
    if device.type == "cuda":
        return "CUDA events"
    return CPU_TIME if torch.get_num_threads() == 1 else "wall time"


def _median_and_quartiles(values: list[float]) -> tuple[float, tuple[float, float]]:
    if len(values) == 1:
        return values[0], (values[0], values[0])
    low, median, high = quantiles(values, n=4, method="inclusive")
    return median, (low, high)
