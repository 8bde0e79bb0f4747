"""Speed, rotations of the residual stream, and the algorithm's own settings."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from claims import NAMES, RESULTS, Claim, Evidence, Found
from figures import Row, Rows, Verdict, change, nats, points, ratio, times, verdict, worst
from statetrim.maths.paired import Interval


def _speed(e: Evidence, kind: str, what: str, width: int) -> Row:
    return e.speed.of(kind=kind, what=what, width=width, device="cpu")[0]


def speedup(what: str, expected: dict[str, dict[int, float]]) -> Callable[[Evidence], Found]:
    def found(e: Evidence) -> Found:
        parts, decided = [], list[Verdict]()
        for kind, widths in expected.items():
            base = _speed(e, kind, what, 128)
            for width in widths:
                gain = ratio(_speed(e, kind, what, width), base)
                parts.append(f"{kind} {width}: {times(gain)}")
                decided.append(verdict(gain, "higher", than=1.0))
        return "; ".join(parts), worst(decided)

    return found


def memory(e: Evidence) -> Found:
    parts = []
    for kind in ("delta_net", "gated_deltanet"):
        base = _speed(e, kind, "mixer", 128)["bytes"]
        for width in (64, 32):
            parts.append((_speed(e, kind, "mixer", width)["bytes"] / base, kind, width))
    shown = "; ".join(f"{kind} {width}: {share:.2f}" for share, kind, width in parts)
    fits = all(share < 1 for share, _, _ in parts)
    return f"{shown} (exact)", "confirmed here" if fits else "contradicted"


SPEED = [
    Claim(
        "Table 3 `tab:mixer_scaling`",
        "a training step of the mixer is faster with fewer key channels",
        "H100, DeltaNet 1.34x at 64 of 128, 1.60x at 32; Gated DeltaNet 1.32x, 1.55x (the text "
        "rounds them to 1.33x and 1.58x)",
        speedup(
            "mixer", {"delta_net": {64: 1.34, 32: 1.6}, "gated_deltanet": {64: 1.32, 32: 1.55}}
        ),
        "an interval that reaches 1",
    ),
    Claim(
        "Table 3",
        "and takes less memory",
        "0.72 at 64, 0.58 at 32, both models (peak on a GPU)",
        memory,
        "a part of 1 or more (what the forward pass keeps for the backward pass, CPU)",
    ),
    Claim(
        "Table 7 `tab:speedup_whole_model`",
        "so is the whole model, by less",
        "1.12 to 1.18x at 50 %, 1.20 to 1.27x at 75 %, 1.22 to 1.32x at 87.5 %",
        speedup(
            "model",
            {
                "delta_net": {64: 1.12, 32: 1.2, 16: 1.23},
                "gated_deltanet": {64: 1.14, 32: 1.22, 16: 1.26},
            },
        ),
        "an interval that reaches 1 (here mixers are most of the model, so the gain is larger)",
    ),
]


def rotations(e: Evidence) -> Found:
    parts, decided = [], list[Verdict]()
    for model, name in NAMES.items():
        rows = e.rotation.of(model=model)
        moved, spread = max(row["rotated cut"] for row in rows), rows[0]["logits"]
        parts.append(
            f"{name}: logits move by at most {moved:.0e} (their standard deviation: {spread:.1f}; "
            f"the cut itself moves them by {rows[0]['cut alone']:.0f}), {len(rows)} rotations"
        )
        decided.append("confirmed here" if moved < 1e-3 else "contradicted")
    return "; ".join(parts), worst(decided)


def rotated_choice(e: Evidence) -> Found:
    """Which methods choose the same channels in the rotated model."""
    rows = [row for model in NAMES for row in e.rotation.of(model=model)]
    shares = {
        method: (min(r["agree"][method] for r in rows), max(r["agree"][method] for r in rows))
        for method in rows[0]["agree"]
    }
    shown = ", ".join(f"{name} {low:.1%} to {high:.1%}" for name, (low, high) in shares.items())
    same = all(low == 1 for low, _ in shares.values())
    return f"channels chosen in both: {shown}", "confirmed here" if same else "contradicted"


def few_tokens(e: Evidence) -> Found:
    """5k keys and queries are enough: no more than 0.01 nats above the most that was tried."""
    what = {"model": "tiny-delta_net", "method": "drrqr", "keep": 0.5, "tolerance": 1.5}
    most = max(row["tokens"] for row in e.calibration.of(**what))
    gap = change(e.calibration.of(**what, tokens=5120), e.calibration.of(**what, tokens=most))
    text = f"DeltaNet, 50 % removed: 5,120 - {most:,} tokens {nats(gap)} nats"
    return text, verdict(gap, "lower", than=0.01)


def swaps_matter(e: Evidence) -> Found:
    """Whether strong RRQR chooses other channels than plain pivoting."""
    rows = e.calibration.of(model="tiny-delta_net", method="drrqr", tokens=5120)
    by = {t: [r for r in rows if r["tolerance"] == t] for t in (1.5, 1.1, 1.0001)}
    shown = "; ".join(
        f"f = {t:g}: {sum(r['swaps'] for r in found)} swaps in "
        f"{sum(r['heads'] for r in found)} choices, "
        f"{fmean(r['channels changed'] for r in found):.1%} of the channels"
        for t, found in by.items()
    )
    matter = any(r["swaps"] for r in by[1.5])
    return f"DeltaNet, {shown}", "confirmed here" if matter else "not confirmed"


def hybrids(e: Evidence) -> Found:
    """Half of the keys of every linear layer, refitted: rows of studies/recall/layers.py."""
    found = {}
    for model, name in HYBRIDS.items():
        rows = Rows(RESULTS / "recall" / f"layers-{model}.jsonl")
        row = rows.of(kind="uniform", part=0.5, axis="keys", mix="text", refit="text")[0]
        _, low, high = row["recall 32"]
        found[name] = Interval((low + high) / 2, low, high)
    pure, mixed = found.values()
    shown = "; ".join(f"{name} {points(change_)}" for name, change_ in found.items())
    decided: Verdict = "confirmed here" if mixed.low > pure.high else "not confirmed"
    return f"recall at 32 pairs, half of the keys: {shown}", decided


HYBRIDS = {"tiny-gated_deltanet6": "Gated DeltaNet", "tiny-qwen3_5_hybrid": "Qwen3.5-layout hybrid"}


METHOD = [
    Claim(
        "Section 6, future work",
        "softmax layers of hybrids may soften the loss of recall",
        "not measured there",
        hybrids,
        "intervals that overlap; the two models differ in more than their softmax layers",
    ),
    Claim(
        "Section 1",
        "the cut is fully compatible with rotations of the residual stream (QuaRot, SliceGPT)",
        "an argument",
        rotations,
        "logits of the rotated cut model that differ by more than rounding",
    ),
    Claim(
        "beside it, not said in the paper",
        "the order does not matter: the methods choose the same channels in a rotated model",
        "not measured there",
        rotated_choice,
        "every method at 100 %; those that look at single weights (L1, S-Wanda, Grad) are not",
    ),
    Claim(
        "Appendix A",
        "5k keys and queries of 128 sequences are enough for DRRQR (within 0.01 nats)",
        "used, not compared",
        few_tokens,
        "an upper bound above 0.01 nats against the largest calibration",
    ),
    Claim(
        "Algorithm 1 `alg:drrqr_compact`, Algorithm 3 `alg:drrqr`",
        "swaps after the pivoted QR make the choice better conditioned",
        "no count of swaps, no value of f is given",
        swaps_matter,
        "one swap at our default tolerance, f = 1.5",
    ),
]
