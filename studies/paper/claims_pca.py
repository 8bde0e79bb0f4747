"""Rotations before selection: PCA, shared filters."""

from __future__ import annotations

from claims import SMALL, Claim, Evidence, Found
from figures import Row, Verdict, change, nats, verdict, worst


def pca_folded(e: Evidence) -> Found:
    parts, decided = [], list[Verdict]()
    for model, name in (("tiny-delta_net", "DeltaNet"), ("ordinary-0", "ordinary, 1M")):
        worse = change(
            e.pca.of(model=model, method="pca proper before", keep=0.5),
            e.pca.of(model=model, method="grad", keep=0.5),
        )
        parts.append(f"{name}: proper - grad {nats(worse)} nats")
        decided.append(verdict(worse, "higher"))
    return "; ".join(parts), worst(decided)


def pca_blind(e: Evidence) -> Found:
    """With filters of their own, proper PCA is no better than adversarial PCA."""
    gap = change(
        e.pca.of(model="tiny-delta_net", method="pca proper before", keep=0.5),
        e.pca.of(model="tiny-delta_net", method="pca adversarial before", keep=0.5),
    )
    return f"DeltaNet, proper - adversarial {nats(gap)} nats", verdict(gap, "higher")


def pca_shared(e: Evidence) -> Found:
    gap = change(
        e.pca.of(model="shared-in-head-0", method="pca proper before", keep=0.5),
        e.pca.of(model="shared-in-head-0", method="pca adversarial before", keep=0.5),
    )
    return f"shared in a head, proper - adversarial {nats(gap)} nats", verdict(gap, "lower")


def pca_shared_loses(e: Evidence) -> Found:
    gap = change(
        e.pca.of(model="shared-in-head-0", method="grad", keep=0.5),
        e.pca.of(model="shared-in-head-0", method="pca proper before", keep=0.5),
    )
    return f"shared in a head, grad - proper PCA {nats(gap)} nats", verdict(gap, "lower")


def pca_after(e: Evidence) -> Found:
    """Not in the paper."""
    parts, decided = [], list[Verdict]()
    for keep in (0.5, 0.25):
        what = {"model": "tiny-delta_net", "keep": keep}
        best = e.pca.of(method="pca proper after", **what)
        costs = {
            method: change(e.pca.of(method=method, **what), e.pca.of(**{**what, "keep": 1.0}))
            for method in ("product", "grad", "drrqr", "pca proper after")
        }
        told = ", ".join(f"{name} {cost.estimate:+.3f}" for name, cost in costs.items())
        gain = change(best, e.pca.of(method="product", **what))
        parts.append(f"{100 - 100 * keep:.0f} % removed: {told}; PCA - product {nats(gain)} nats")
        decided.append(verdict(gain, "lower"))
    return "DeltaNet, " + "; ".join(parts), worst(decided)


def shared_costs(e: Evidence) -> Found:
    """Models trained from scratch, by seed."""
    parts, decided = [], list[Verdict]()
    ordinary = [row for seed in "012" for row in _base(e, f"ordinary-{seed}")]
    for kind in SMALL[1:]:
        own = [row for seed in "012" for row in _base(e, f"{kind}-{seed}")]
        count = min(len(own), len(ordinary))
        if not count:
            raise LookupError(kind)
        gap = change(own[:count], ordinary[:count])
        seeds = "1 seed" if count == 1 else f"{count} seeds"
        parts.append(f"{kind.replace('-', ' ')} - ordinary {nats(gap)} nats, {seeds}")
        decided.append(verdict(gap, "higher"))
    return "; ".join(parts), worst(decided)


def _base(e: Evidence, model: str) -> list[Row]:
    try:
        return e.pca.of(model=model, method="none")
    except LookupError:
        return []


PCA = [
    Claim(
        "Section 4.1, Table 5 `table:adv_vs_non_adv`",
        "PCA folded before the convolution, with mixed filters, falls short of selection",
        "DN 370M at 50 %: 320,000 against 31.8 (Grad)",
        pca_folded,
        "an interval that is not above 0",
    ),
    Claim(
        "Table 5",
        "with a filter of each channel's own, proper PCA is as bad as adversarial PCA",
        "DN 370M: 3.2e5 and 2.4e5 at 50 %, 3.3e5 and 3.1e5 at 75 %",
        pca_blind,
        "proper PCA below adversarial: then the rotation keeps something of the signal",
    ),
    Claim(
        "Table 5, Lemma B.2 `lemma:shared-conv`",
        "with shared filters proper PCA is far better than adversarial PCA",
        "DN 370M at 50 %: 155.8 against 61,000",
        pca_shared,
        "an interval that reaches 0",
    ),
    Claim(
        "Table 5",
        "even with shared filters Grad is better than PCA",
        "DN 370M: 33.7 against 155.8 at 50 %, 69.8 against 184.5 at 75 %",
        pca_shared_loses,
        "an interval that reaches 0",
    ),
    Claim(
        "Table 4 `tab:shared-non-shared-comp-full`",
        "models trained with shared filters are slightly worse",
        "zero-shot 44.2, 43.8 (in a head), 43.2 (all heads); WikiText 29.8, 29.5, 29.3: better",
        shared_costs,
        "an interval below 0 in NLL, which is what the paper's own perplexities say",
    ),
    Claim(
        "not in the paper",
        "PCA *after* SiLU loses less than the best selection",
        "not tried there",
        pca_after,
        "an interval that reaches 0",
    ),
]
