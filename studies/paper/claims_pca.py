"""Rotations before selection: PCA, shared filters."""

from __future__ import annotations

from statistics import fmean

from claims import SMALL, Evidence, Outcome
from figures import Row, change, compared, nats, verdict, worst
from statetrim.maths.paired import Interval

DELTA_NET = "tiny-delta_net"
MODELS = {DELTA_NET: "DeltaNet"} | SMALL
OWN = {name: MODELS[name] for name in (DELTA_NET, "ordinary")}  # each channel has its own filter
SHARED = {name: MODELS[name] for name in ("shared-in-head", "shared-in-layer")}
PROPER, ADVERSARIAL, AFTER = "pca proper before", "pca adversarial before", "pca proper after"
SELECTED = ("product", "grad", "drrqr")
LINEAR = 0.3  # SiLU's output that is not linear in its input; below, SiLU hardly bends


def measured(e: Evidence, models: dict[str, str] = MODELS) -> dict[str, str]:
    """Labels of the models that have rows, with the number of training seeds."""
    labels = {}
    for model, name in models.items():
        seeds = len(e.seeds(model))
        if model == DELTA_NET:
            labels[model] = name
        elif seeds:
            labels[model] = f"{name}, {seeds} seed" + ("s" if seeds > 1 else "")
    return labels


def gaps(e: Evidence, models: dict[str, str], method: str, other: str) -> dict[str, Interval]:
    """NLL of `method` minus that of `other` with half of the channels removed, by model."""
    return {
        name: change(e.projected(model, method, 0.5), e.projected(model, other, 0.5))
        for model, name in measured(e, models).items()
    }


def pca_folded(e: Evidence) -> Outcome:
    return compared("proper PCA - grad, nats: ", gaps(e, OWN, PROPER, "grad"), "higher")


def pca_blind(e: Evidence) -> Outcome:
    """If each channel has its own filter, proper PCA is no better than adversarial PCA."""
    return compared("proper - adversarial, nats: ", gaps(e, OWN, PROPER, ADVERSARIAL), "higher")


def pca_shared(e: Evidence) -> Outcome:
    return compared("proper - adversarial, nats: ", gaps(e, SHARED, PROPER, ADVERSARIAL), "lower")


def bend(rows: list[Row]) -> float:
    """The fraction of SiLU's output that is not linear in its input, mean of layers and seeds."""
    return fmean(fmean(row["bend"]) for row in rows)


def pca_shared_loses(e: Evidence) -> Outcome:
    """No verdict if SiLU is nearly linear: then a layer with shared filters commutes with
    rotations, unlike in a trained model of the paper's scale."""
    text, outcome = compared("grad - proper PCA, nats: ", gaps(e, SHARED, "grad", PROPER), "lower")
    nonlinearity = {model: bend(e.projected(model, "bend")) for model in measured(e)}
    shown = ", ".join(
        f"{fraction:.0%} in {MODELS[model]}" for model, fraction in nonlinearity.items()
    )
    linear = any(nonlinearity[model] < LINEAR for model in measured(e, SHARED))
    text += f"; SiLU's output that is not linear in its input: {shown}"
    return text, "needs its scale" if linear else outcome


def pca_after(e: Evidence) -> Outcome:
    """PCA after SiLU (not in the paper) compared with the best selection, in every model."""
    texts, verdicts = [], []
    for model, name in measured(e).items():
        base = e.projected(model, "none")
        for keep in (0.5, 0.25):
            rows = {m: e.projected(model, m, keep) for m in SELECTED}
            costs = {m: change(method_rows, base).estimate for m, method_rows in rows.items()}
            best = min(costs, key=lambda method: costs[method])
            after = e.projected(model, AFTER, keep)
            gain = change(after, rows[best])
            shown = f"{change(after, base).estimate:+.3f} against {best} {costs[best]:+.3f}"
            texts.append(f"{name}, {100 - 100 * keep:.0f} % removed: {shown}: {nats(gain)}")
            verdicts.append(verdict(gain, "lower"))
    return "nats: " + "; ".join(texts), worst(verdicts)


def shared_costs(e: Evidence) -> Outcome:
    """NLL of models trained from scratch with shared filters and without, by seed."""
    costs = {}
    for kind, name in measured(e, SHARED).items():
        seeds = [seed for seed in e.seeds(kind) if seed in e.seeds("ordinary")]
        own, ordinary = (
            [e.pca.select(model=f"{model_kind}-{seed}", method="none")[0] for seed in seeds]
            for model_kind in (kind, "ordinary")
        )
        costs[name] = change(own, ordinary)
    return compared("shared - ordinary, nats: ", costs, "higher")


PCA = (
    pca_folded,
    pca_blind,
    pca_shared,
    pca_shared_loses,
    shared_costs,
    pca_after,
)
