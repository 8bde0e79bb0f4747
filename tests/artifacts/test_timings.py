"""The medians of two models and their ratio, as tables show them."""

import re

import statetrim as st
from statetrim.artifacts.timings import Timing
from statetrim.benchmarking.stopwatch import RoundTimes

SECONDS = {"original": [1.0, 2.0, 4.0, 1.6, 2.0], "cut": [0.9, 2.6, 3.0, 1.5, 2.2]}
"""A noisy machine: the cut is faster in three rounds of five, and its median is slower."""


def timings(seconds: dict[str, list[float]]) -> st.Timings:
    laps, records = RoundTimes(seconds), list[Timing]()
    for name in seconds:
        (value, spread), (ratio, within) = laps.rate(name, 400), laps.speedup(name)
        first = not records
        records.append(
            Timing(name, "decode", 1, 64, value, "tokens/s", spread, None if first else ratio,
                   None if first else within)
        )  # fmt: skip
    return st.Timings(list(seconds), records)


def shown(measured: st.Timings) -> tuple[float, float, float, str]:
    """Both medians, their ratio, and the remark on noise, from the table."""
    (row,) = measured.table().rows
    match = re.fullmatch(r"([\d,]+) \(([\d.]+)x(.*)\)", row[4])
    assert match
    return float(row[3]), float(match[1]), float(match[2]), match[3]


def test_the_ratio_is_that_of_the_figures_shown() -> None:
    measured = timings(SECONDS)
    assert measured.records[1].ratio and measured.records[1].ratio > 1.0
    before, after, ratio, remark = shown(measured)
    assert after < before and abs(ratio - after / before) < 0.01
    assert remark == ", within noise"


def test_a_difference_in_every_round_is_no_noise() -> None:
    steady = {"original": [1.0, 2.0, 4.0], "cut": [0.5, 1.0, 2.0]}
    assert shown(timings(steady))[2:] == (2.0, "")
