"""The pictures of results/paper.md, from committed rows."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from claims import METHODS, Evidence
from claims_pca import ADVERSARIAL, AFTER, PROPER, measured
from figures import RESULTS, Rows, change, mean, perplexity
from statetrim.artifacts.analysis import BINS, BINS_PER_DECADE, LOWEST_DECADE

COLOURS = {  # Okabe and Ito's
    "original": "#000000",
    "rand": "#999999",
    "l1": "#E69F00",
    "s_wanda": "#CC79A7",
    "grad": "#0072B2",
    "drrqr": "#D55E00",
}
MODEL = "tiny-delta_net"
RECOVERED = " recovered"


def colour(name: str) -> str:
    return COLOURS[name.removesuffix(RECOVERED)]


def style(name: str) -> str:
    return "--" if name.endswith(RECOVERED) else "-"


def quality(evidence: Evidence, path: Path) -> None:
    """Perplexity and recall by the fraction of key channels removed, before and after recovery."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4))
    base, control = evidence.cut(MODEL, "none"), evidence.recovered("none")
    widths = sorted(evidence.recovered_widths(MODEL), reverse=True)
    removed = [100 - 100 * keep for keep in widths]
    for method in METHODS:
        stages = {
            method: [evidence.cut(MODEL, method, keep) for keep in widths],
            method + RECOVERED: [evidence.recovered(method, keep) for keep in widths],
        }
        for name, rows in stages.items():
            figures = (
                map(perplexity, rows),
                (100 * mean(method_rows, "recall 32") for method_rows in rows),
            )
            for axes, values in zip(panels, figures, strict=True):
                axes.plot(removed, list(values), style(name), color=colour(name), marker="o", ms=4)
                axes.lines[-1].set_label(name)
    for model_rows, line, name in ((base, "-", "original"), (control, ":", "control")):
        panels[0].axhline(perplexity(model_rows), color="black", linestyle=line, linewidth=1)
        recalled = 100 * mean(model_rows, "recall 32")
        panels[1].axhline(recalled, color="black", linestyle=line, linewidth=1, label=name)
    panels[0].set(title="perplexity", yscale="log")
    ticks = [300, 400, 600, 1000, 1500]
    panels[0].set_yticks(ticks, [str(tick) for tick in ticks])
    panels[0].minorticks_off()
    panels[1].set(title="recall at 32 pairs (%)", ylim=(0, 100))
    for axes in panels:
        axes.set(xlabel="key channels removed (%)", xticks=removed)
        axes.grid(alpha=0.3)
    panels[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path / "quality.png", dpi=120)
    plt.close(figure)


def utilization(evidence: Evidence, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(9, 4.4))
    for row in evidence.spectra.select(model=MODEL):
        name = row["name"]
        if name.removesuffix(RECOVERED) in COLOURS:
            values = [100 * value for value in row["curve"]]
            axes.plot(row["positions"], values, style(name), color=colour(name), label=name)
    axes.set(xlabel="token", ylabel="rank utilization (%)", ylim=(0, None))
    axes.set_title("DeltaNet 4.5M, 75 % of the key channels removed")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path / "utilization.png", dpi=120)
    plt.close(figure)


def spectra(evidence: Evidence, path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    edges = 10.0 ** (LOWEST_DECADE + np.arange(BINS + 1) / BINS_PER_DECADE)
    sets = {
        "before recovery": ("original", "l1", "grad", "drrqr"),
        "drrqr before and after recovery": ("original", "drrqr", "drrqr recovered"),
    }
    for axes, (title, names) in zip(panels, sets.items(), strict=True):
        for name in names:
            row = evidence.state(name)
            counts = np.array(row["histogram"], dtype=float)
            looks = counts.sum() / row["widest"]
            after = name.endswith(RECOVERED)
            line = COLOURS["grad"] if after else colour(name)
            width = 1.2 if after else 1.8
            axes.stairs(
                counts / looks,
                edges,
                color=line,
                label=name,
                linewidth=width,
                linestyle=style(name),
            )
        axes.set(xscale="log", xlim=(1e-3, 30), xlabel="singular value", title=f"75 %, {title}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left")
    layer, head = evidence.state("original")["head"]
    panels[0].set_ylabel(f"singular values of a state\n(layer {layer}, head {head})")
    figure.savefig(path / "spectra.png", dpi=120)
    plt.close(figure)


def pca(evidence: Evidence, path: Path) -> None:
    methods = {
        ADVERSARIAL: "PCA, smallest, folded",
        PROPER: "PCA, largest, folded",
        "pca adversarial after": "PCA, smallest, after SiLU",
        "grad": "grad",
        "drrqr": "drrqr",
        "product": "product",
        AFTER: "PCA, largest, after SiLU",
    }
    figure, panels = plt.subplots(2, 2, figsize=(10, 6.4), sharex=True, sharey=True)
    for axes, (model, title) in zip(panels.flat, measured(evidence).items(), strict=False):
        base = evidence.projected(model, "none")
        for position, method in enumerate(methods):
            cost = change(evidence.projected(model, method, 0.5), base)
            bounds = [[max(cost.estimate - cost.low, 0)], [max(cost.high - cost.estimate, 0)]]
            shade = "#0072B2" if method.startswith("pca") else "#E69F00"
            axes.barh(position, cost.estimate, xerr=bounds, color=shade, ecolor="#000000")
            end = max(cost.high, cost.estimate, 1e-3)
            axes.annotate(f" {cost.estimate:+.3f}", (end, position), va="center", fontsize=8)
        axes.set(xscale="log", xlim=(1e-3, 40), title=title)
        axes.set_yticks(range(len(methods)), list(methods.values()))
        axes.grid(alpha=0.3, axis="x")
    for axes in panels[1]:
        axes.set_xlabel("nats above the original, 50 % removed")
    figure.savefig(path / "pca.png", dpi=120)
    plt.close(figure)


LAYERS = {
    "uniform": ("every layer cut alike", "#D55E00"),
    "first whole": ("first layer left whole", "#0072B2"),
}


def recall_by_layer(path: Path) -> None:
    """Recall by bytes kept, with all layers cut alike or the first one left whole (rows of
    results/recall)."""
    models = {"tiny-gated_deltanet6": "Gated DeltaNet, 6 layers", "tiny-qwen3_5_hybrid": "hybrid"}
    figure, panels = plt.subplots(1, len(models), figsize=(9, 3.6), sharey=True)
    for axes, (model, title) in zip(panels, models.items(), strict=True):
        rows = Rows(RESULTS / "recall" / f"layers-{model}.jsonl").rows
        for kind, (label, shade) in LAYERS.items():
            recall_by_part = {
                row["part"]: row["recall 32"]
                for row in rows
                if row.get("kind") == kind and row.get("axis") == "keys" and row["refit"] == "text"
            }
            parts = sorted(recall_by_part)
            middle = [100 * recall_by_part[part][0] for part in parts]
            half = [50 * (recall_by_part[part][2] - recall_by_part[part][1]) for part in parts]
            kept = [100 * part for part in parts]
            axes.errorbar(kept, middle, half, color=shade, marker="o", label=label)
        axes.set(title=title, xlabel="bytes of the state kept (%)", ylim=(0, 105))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("recall at 32 pairs (%)")
    panels[1].legend(frameon=False, loc="lower right")
    figure.savefig(path / "recall-by-layer.png", dpi=130)
    plt.close(figure)


def draw(evidence: Evidence, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    plt.rcParams["figure.constrained_layout.use"] = True
    quality(evidence, path)
    utilization(evidence, path)
    spectra(evidence, path)
    pca(evidence, path)
    recall_by_layer(path)
