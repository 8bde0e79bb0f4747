"""What a cut costs before recovery: perplexity, recall, and which scores to select by."""

from __future__ import annotations

import math

from claims import BEST, KEPT, NAMES, OTHERS, Claim, Evidence, Outcome
from figures import change, closest, compared, mean, nats, percent, points, worst
from statetrim.maths.paired import Interval

DELTA_NET = "tiny-delta_net"


def small_cost(e: Evidence) -> Outcome:
    costs = {
        f"{name} {method}": change(e.cut(model, method), e.cut(model, "none"))
        for model, name in NAMES.items()
        for method in BEST
    }
    return compared("", costs, "lower", than=math.log(1.1), show=percent)


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
    texts, verdicts = [], []
    for model, name in NAMES.items():
        for keep in widths:
            gaps = gains(e, model, keep)
            verdicts.append(compared("", gaps, "lower")[1])
            removed = f"{name}, {100 - 100 * keep:.0f} % removed: "
            texts.append(compared(removed, closest(gaps, "lower"), "lower")[0])
    return "closest pair, nats: " + "; ".join(texts), worst(verdicts)


def competitive(e: Evidence) -> Outcome:
    gaps = {
        name: change(e.cut(model, "drrqr"), e.cut(model, "grad")) for model, name in NAMES.items()
    }
    return compared("drrqr - grad, nats: ", gaps, "lower", than=0.05)


def quarter(e: Evidence) -> Outcome:
    costs = {
        f"{name} {method}": change(e.cut(model, method, 0.25), e.cut(model, "none"))
        for model, name in NAMES.items()
        for method in BEST
    }
    return compared("", costs, "lower", than=math.log(18.8 / 16.8), show=percent)


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


QUALITY = [
    Claim(
        "Abstract, Table 2 `tab:pre_rft_50_gated_only`, Table 8 `tab:unified_summary_50`",
        "removing half of the key channels raises perplexity only marginally, before recovery "
        "(taken as: below 10 %)",
        "Grad and DRRQR: GDN 1.3B +3.6 %, +3.0 %; GDN 370M +15.6 %, +9.7 %; DN 370M +6.4 %, "
        "+5.4 %; DN 1.3B +9.6 %, +22.8 %",
        small_cost,
        "all four intervals below 10 % (of the paper's own eight figures two are above)",
    ),
    Claim(
        "Section 5.1, Tables 2 and 8",
        "at 50 % Grad and DRRQR are better than L1, S-Wanda and Rand before recovery",
        "in all four models (GDN 1.3B: 17.4 and 17.3 against 18.8 to 26.5)",
        best_before,
        "one of the twelve intervals that is not below 0, in any sample",
    ),
    Claim(
        "Tables 9 to 12 `tab:zs-dn-370M` `tab:zs-dn-13B` `tab:zs-gdn-370M` `tab:zs-gdn-13B`",
        "the same at 75, 40 and 30 % before recovery",
        "in WikiText everywhere; in LAMBADA Rand is ahead of DRRQR in DN 1.3B and GDN 1.3B at 40 "
        "and 30 %",
        far_before,
        "all 36 intervals below 0 for a confirmation; one above 0 for a contradiction",
    ),
    Claim(
        "Section 5.1",
        "DRRQR, though local and task-agnostic, is competitive with Grad (taken as: within "
        "0.05 nats)",
        "DN 370M -0.010 nats, GDN 1.3B -0.006, DN 1.3B +0.114",
        competitive,
        "an upper bound below 0.05 nats in both models; the paper's own DN 1.3B is above",
    ),
    Claim(
        "Section 5.1",
        "even at 75 % perplexity goes up by about two points (GDN 1.3B, 16.8)",
        "its Table 12 has 22.3 and 22.5 before recovery (+33 %) and 17.8 and 17.9 after (+6 %): "
        "the sentence fits neither",
        quarter,
        "an increase within 2 of 16.8 points (12 %)",
    ),
    Claim(
        "Section 5.1, Tables 13 to 16 `tab:recall-dn-370M` `tab:recall-dn-13B` "
        "`tab:recall-gdn-370M` `tab:recall-gdn-13B`",
        "retrieval is more sensitive than perplexity (taken as: a larger share is lost)",
        "GDN 1.3B at 50 %, Grad: FDA 53.7 to 36.6, SWDE 37.5 to 28.4 (after recovery)",
        recall_falls,
        "an interval of recall that reaches the share by which perplexity rises",
    ),
    Claim(
        "Section 5.1, Tables 13 to 16",
        "at about 30 % retrieval stays competitive (taken as: a tenth is lost at most, as there)",
        "GDN 1.3B 38.0 of 40.3, DN 1.3B 36.1 of 40.1, DN 370M 19.3 of 20.8, GDN 370M 21.1 of 23.3",
        recall_at_30,
        "intervals that exclude a loss of a tenth at every load",
    ),
]


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


COUPLING = [
    Claim(
        "Table 6 `tab:ablation_kq_targets`, Appendix C.3",
        "magnitude methods do better when they score queries alone",
        "L1: DN 370M 33.0 against 3843.5, GDN 1.3B 24.5 against 26.5, but GDN 370M 49.9 against "
        "41.8",
        magnitude_by_queries,
        "intervals below 0",
    ),
    Claim(
        "Table 6",
        "scored by keys alone, magnitude methods are unstable and worse than by queries",
        "L1: DN 370M 425,218 against 33.0; GDN 1.3B 29.8 against 24.5",
        magnitude_by_keys,
        "intervals above 0",
    ),
    Claim(
        "Table 6",
        "Grad and DRRQR are best when they score queries and keys together",
        "in all four models (DRRQR, DN 370M: 31.4, keys 286,036, queries 32.1)",
        joint_is_best,
        "an interval of any of the four that is not below 0",
    ),
]
