"""What a cut costs before recovery: perplexity, recall, and which scores to select by."""

from __future__ import annotations

import math

from claims import BEST, KEPT, NAMES, OTHERS, Evidence, Outcome
from figures import change, closest_compared, compared, mean, nats, percent, points, worst
from statetrim.maths.paired import Interval

DELTA_NET = "tiny-delta_net"


def small_cost(e: Evidence) -> Outcome:
    return _cost(e, 0.5, than=math.log(1.1))


def quarter(e: Evidence) -> Outcome:
    return _cost(e, 0.25, than=math.log(18.8 / 16.8))


def _cost(e: Evidence, keep: float, than: float) -> Outcome:
    costs = {
        f"{name} {method}": change(e.cut(model, method, keep), e.cut(model, "none"))
        for model, name in NAMES.items()
        for method in BEST
    }
    return compared("", costs, "lower", than=than, show=percent)


def gains(e: Evidence, model: str, keep: float) -> dict[str, Interval]:
    """NLL of Grad and DRRQR minus that of each other method."""
    return {
        f"{best} - {other}": change(e.cut(model, best, keep), e.cut(model, other, keep))
        for best in BEST
        for other in OTHERS
    }


def best_before(e: Evidence) -> Outcome:
    return _ahead(e, (0.5,))


def far_before(e: Evidence) -> Outcome:
    return _ahead(e, tuple(keep for keep in KEPT if keep != 0.5))


def _ahead(e: Evidence, widths: tuple[float, ...]) -> Outcome:
    cases = {
        f"{name}, {100 - 100 * keep:.0f} % removed": gains(e, model, keep)
        for model, name in NAMES.items()
        for keep in widths
    }
    return closest_compared("closest pair, nats: ", cases, "lower")


def competitive(e: Evidence) -> Outcome:
    gaps = {
        name: change(e.cut(model, "drrqr"), e.cut(model, "grad")) for model, name in NAMES.items()
    }
    return compared("drrqr - grad, nats: ", gaps, "lower", than=0.05)


def recall_falls(e: Evidence) -> Outcome:
    """Whether the relative loss of recall is larger than the relative rise of perplexity."""
    texts, verdicts = [], []
    for model, name in NAMES.items():
        base = e.cut(model, "none")
        rise = change(e.cut(model, "grad"), base)
        lost = change(e.cut(model, "grad"), base, "recall 32")
        bound = -math.expm1(rise.high) * mean(base, "recall 32")
        shown, verdict = compared(f"{name} ", {"recall": lost}, "lower", than=bound, show=points)
        texts.append(f"{shown}, perplexity {percent(rise)}")
        verdicts.append(verdict)
    return "grad, 50 % removed, 32 pairs: " + "; ".join(texts), worst(verdicts)


def recall_at_30(e: Evidence) -> Outcome:
    """Whether at most a tenth of recall is lost, as in the paper's tables (38.0 of 40.3)."""
    texts, verdicts = [], []
    for model, name in NAMES.items():
        base = e.cut(model, "none")
        for pairs in (16, 32, 63):
            lost = change(e.cut(model, "grad", 0.7), base, f"recall {pairs}")
            tenth = mean(base, f"recall {pairs}") / 10
            label = {f"{name}, {pairs} pairs": lost}
            shown, verdict = compared("", label, "higher", than=-tenth, show=points)
            texts.append(shown)
            verdicts.append(verdict)
    return "grad: " + "; ".join(texts), worst(verdicts)


QUALITY = (
    small_cost,
    best_before,
    far_before,
    competitive,
    quarter,
    recall_falls,
    recall_at_30,
)


def by_score(
    e: Evidence, methods: tuple[str, ...], score: str, other_score: str
) -> dict[str, Interval]:
    """NLL of cuts selected by `score` minus that by `other_score` ("q", "k" or "qk")."""
    return {
        method: change(
            e.cut(DELTA_NET, method, score=score), e.cut(DELTA_NET, method, score=other_score)
        )
        for method in methods
    }


def magnitude_by_queries(e: Evidence) -> Outcome:
    gaps = by_score(e, ("l1", "s_wanda"), "q", "qk")
    return compared("DeltaNet, queries only - both, nats: ", gaps, "lower")


def magnitude_by_keys(e: Evidence) -> Outcome:
    gaps = by_score(e, ("l1", "s_wanda"), "k", "q")
    return compared("DeltaNet, keys only - queries only, nats: ", gaps, "higher")


def joint_is_best(e: Evidence) -> Outcome:
    gaps = {
        f"{method} - its {score}": gap
        for score in ("k", "q")
        for method, gap in by_score(e, BEST, "qk", score).items()
    }
    return compared("DeltaNet, nats: ", gaps, "lower", show=nats)


COUPLING = (
    magnitude_by_queries,
    magnitude_by_keys,
    joint_is_best,
)
