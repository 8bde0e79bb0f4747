"""Effective rank of the state, before and after pruning and recovery."""

from __future__ import annotations

from itertools import pairwise
from math import log
from statistics import fmean, median

from claims import BEST, OTHERS, Evidence, Outcome
from figures import Row, compared, interval, nats, points, share, verdict
from statetrim.maths.paired import Interval


def low_rank(e: Evidence) -> Outcome:
    row = e.state("original")
    ranks = row["effective rank"]
    mean = interval([0.0] * len(ranks), ranks)
    text = f"DeltaNet: effective rank {mean.estimate:.1f} ({mean.low:.1f}, {mean.high:.1f})"
    text = f"{text} of {row['widest']}, over {len(ranks)} heads"
    return text, verdict(mean, "lower", than=row["widest"] / 2)


def fuller(e: Evidence) -> Outcome:
    gaps = {
        f"{best} - {other}": interval(
            e.state(other)["effective rank"], e.state(best)["effective rank"]
        )
        for best in BEST
        for other in OTHERS
    }
    opening = f"DeltaNet, effective rank of {e.state('grad')['widest']}: "
    return compared(opening, gaps, "higher", show=hundredths)


def hundredths(gap: Interval) -> str:
    return nats(gap, 2)


def tail_goes(e: Evidence) -> Outcome:
    """Whether fewer of a head's singular values are below a tenth of its largest one."""
    before, after = (_small_parts(e.state(name)) for name in ("original", "drrqr"))
    less = interval(before, after)
    shares = f"{fmean(before):.0%} of a head's to {fmean(after):.0%}"
    text = f"DeltaNet, singular values below a tenth of the largest: {shares}, {points(less)}"
    return text, verdict(less, "lower")


def _small_parts(row: Row) -> list[float]:
    return [
        sum(value < spectrum[0] / 10 for value in spectrum) / len(spectrum)
        for spectrum in row["spectra"]
    ]


def better_keys(e: Evidence) -> Outcome:
    gaps = {
        f"drrqr - {other}": interval(_log(e.state(other)), _log(e.state("drrqr")))
        for other in ("l1", "rand")
    }
    middle = {name: median(e.state(name)["key condition"]) for name in ("drrqr", "l1", "rand")}
    shown = ", ".join(f"{name} {value:.0f}" for name, value in middle.items())
    opening = f"DeltaNet, 75 % removed, median kappa of keys: {shown}; log: "
    return compared(opening, gaps, "lower", show=hundredths)


def _log(row: Row) -> list[float]:
    return [log(value) for value in row["key condition"]]


def rank_kept(e: Evidence) -> Outcome:
    before, after = (e.state(name)["effective rank"] for name in ("original", "drrqr"))
    loss = interval(before, after)
    share = loss.estimate / fmean(before)
    text = f"DeltaNet, DRRQR at 75 %: {nats(loss, 2)} of {fmean(before):.1f} ({share:+.0%})"
    return text, verdict(loss, "higher", than=-0.1 * fmean(before))


def gap_opens(e: Evidence) -> Outcome:
    """Whether recovery raises the largest ratio of neighbouring singular values, without the
    first, in a head's mean spectrum."""
    names = ("original", "drrqr", "drrqr recovered")
    steps = {name: _largest_steps(e.state(name)) for name in names}
    shown = ", ".join(f"{name} {fmean(step):.2f}" for name, step in steps.items())
    opened = interval(steps["drrqr"], steps["drrqr recovered"])
    text = f"DeltaNet, 75 % removed, largest ratio of neighbours, mean over heads: {shown}"
    return f"{text}; after - before recovery {nats(opened, 2)}", verdict(opened, "higher")


def _largest_steps(row: Row) -> list[float]:
    """The largest ratio per head, among the first 16 singular values, which all three models
    have."""
    return [max(a / b for a, b in pairwise(spectrum[1:16])) for spectrum in row["spectra"]]


def recovery_fills(e: Evidence) -> Outcome:
    gaps = {
        method: interval(
            e.state(method)["effective rank"], e.state(f"{method} recovered")["effective rank"]
        )
        for method in (*OTHERS, *BEST)
    }
    opening = "DeltaNet, 75 % removed, effective rank after - before recovery: "
    return compared(opening, gaps, "higher", show=hundredths)


def alike(e: Evidence) -> Outcome:
    """Whether filters are alike in some heads: one layer is enough."""
    row, similarities = e.state("original"), {}
    for layer, sides in enumerate(zip(row["query similarity"], row["key similarity"], strict=True)):
        values = [value for side in sides for value in side]
        similarities[f"layer {layer}"] = interval([0.0] * len(values), values)
    shown, _ = compared("DeltaNet: ", similarities, "higher", than=RANDOM, show=share)
    any_confirmed = any(
        verdict(similarity, "higher", RANDOM) == "confirmed here"
        for similarity in similarities.values()
    )
    return (
        f"{shown}; random filters {RANDOM}",
        "confirmed here" if any_confirmed else "not confirmed",
    )


RANDOM = 0.42  # mean |cosine| of directions in 4 dimensions, the filters' width


RANK = (
    low_rank,
    fuller,
    tail_goes,
    better_keys,
    rank_kept,
    gap_opens,
    recovery_fills,
    alike,
)
