"""Speed, rotations of the residual stream, and the algorithm's own settings."""

from __future__ import annotations

from collections.abc import Callable

from claims import NAMES, Evidence, Outcome
from figures import (
    RESULTS,
    Row,
    Rows,
    Verdict,
    change,
    compared,
    interval,
    nats,
    points,
    ratio,
    share,
    times,
    verdict,
    worst,
)
from statetrim.maths.paired import Interval


def _speed(e: Evidence, kind: str, scope: str, width: int) -> Row:
    return e.speed.select(kind=kind, what=scope, width=width, device="cpu")[0]


def speedup(scope: str, widths: tuple[int, ...]) -> Callable[[Evidence], Outcome]:
    def decide(e: Evidence) -> Outcome:
        gains = {
            f"{kind} {width}:": ratio(_speed(e, kind, scope, width), _speed(e, kind, scope, 128))
            for kind in KINDS
            for width in widths
        }
        return compared("", gains, "higher", than=1.0, show=times)

    return decide


KINDS = ("delta_net", "gated_deltanet")


def memory(e: Evidence) -> Outcome:
    """Bytes have no sampling error, so both bounds of the interval are the estimate."""
    ratios = {
        f"{kind} {width}:": Interval(*3 * [_bytes(e, kind, width) / _bytes(e, kind, 128)])
        for kind in KINDS
        for width in (64, 32)
    }
    return compared("counted: ", ratios, "lower", than=1.0, show=share)


def _bytes(e: Evidence, kind: str, width: int) -> int:
    count: int = _speed(e, kind, "mixer", width)["bytes"]
    return count


SPEED = (
    speedup("mixer", (64, 32)),
    memory,
    speedup("model", (64, 32, 16)),
)


def rotations(e: Evidence) -> Outcome:
    texts, verdicts = [], list[Verdict]()
    for model, name in NAMES.items():
        rows = e.rotation.select(model=model)
        moved = [row["rotated cut"] for row in rows]
        texts.append(
            f"{name}: the largest move of a logit in {len(rows)} rotations is "
            f"{max(moved):.1e} ({min(moved):.1e} to {max(moved):.1e}); their standard deviation "
            f"is {rows[0]['logits']:.1f}, and the cut moves them by {rows[0]['cut alone']:.0f}"
        )
        verdicts.append("confirmed here" if max(moved) < ROUNDING else "not seen here")
    return "; ".join(texts), worst(verdicts)


ROUNDING = 1e-3  # of a logit, in float32


def rotated_choice(e: Evidence) -> Outcome:
    """Which methods choose the same channels after a rotation, over models and rotations."""
    rows = [row for model in NAMES for row in e.rotation.select(model=model)]
    lost = {
        method: interval([1.0] * len(rows), [row["agree"][method] for row in rows])
        for method in rows[0]["agree"]
    }
    text, _ = compared("channels chosen in both - all channels: ", lost, "lower", show=points)
    differs = any(verdict(gap, "lower") == "confirmed here" for gap in lost.values())
    return text, "not seen here" if differs else "not confirmed"


def few_tokens(e: Evidence) -> Outcome:
    """Whether 5k keys and queries are enough: within 0.01 nats of the largest calibration."""
    filters = {"model": "tiny-delta_net", "method": "drrqr", "keep": 0.5, "tolerance": 1.5}
    most = max(row["tokens"] for row in e.calibration.select(**filters))
    gap = change(
        e.calibration.select(**filters, tokens=5120), e.calibration.select(**filters, tokens=most)
    )
    text = f"DeltaNet, 50 % removed: 5,120 - {most:,} tokens {nats(gap)} nats"
    return text, verdict(gap, "lower", than=0.01)


def swaps_matter(e: Evidence) -> Outcome:
    """How often strong RRQR differs from plain pivoting, and how the NLL changes by it."""
    filters = {"model": "tiny-delta_net", "method": "drrqr", "tokens": 5120, "keep": 0.5}
    plain = e.calibration.select(**filters, tolerance=NO_SWAPS)
    gaps = {}
    for tolerance in (1.5, 1.1, 1.0001):
        rows = e.calibration.select(**filters, tolerance=tolerance)
        swaps, heads = (sum(row[name] for row in rows) for name in ("swaps", "heads"))
        gaps[f"f = {tolerance:g}: {swaps} swaps in {heads} heads,"] = change(rows, plain)
    text, _ = compared("DeltaNet, nats against no swaps: ", gaps, "lower")
    return text, verdict(next(iter(gaps.values())), "lower")


NO_SWAPS = 1e6


def hybrids(e: Evidence) -> Outcome:
    """Half of the key channels of every linear layer, refitted (results/recall)."""
    changes = {}
    for model, name in HYBRIDS.items():
        rows = Rows(RESULTS / "recall" / f"layers-{model}.jsonl")
        row = rows.select(kind="uniform", part=0.5, axis="keys", mix="text", refit="text")[0]
        _, low, high = row["recall 32"]
        changes[name] = Interval((low + high) / 2, low, high)
    pure, mixed = changes.values()
    shown = "; ".join(f"{name} {points(gap)}" for name, gap in changes.items())
    outcome: Verdict = "confirmed here" if mixed.low > pure.high else "not confirmed"
    return f"recall at 32 pairs, half of the keys: {shown}", outcome


HYBRIDS = {"tiny-gated_deltanet6": "Gated DeltaNet", "tiny-qwen3_5_hybrid": "Qwen3.5-layout hybrid"}


METHOD = (
    hybrids,
    rotations,
    rotated_choice,
    few_tokens,
    swaps_matter,
)
