"""The pictures of docs/paper.md, from committed rows."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from claims import RESULTS, Evidence
from figures import change
from statetrim.artifacts.analysis import BINS, BINS_PER_DECADE, LOWEST_DECADE

COLOURS = {  # Okabe and Ito's
    "original": "#000000",
    "rand": "#999999",
    "l1": "#E69F00",
    "s_wanda": "#CC79A7",
    "grad": "#0072B2",
    "drrqr": "#D55E00",
    "half drrqr": "#56B4E9",
    "half drrqr recovered": "#009E73",
}
MODEL = "tiny-delta_net"


def utilization(evidence: Evidence, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    for row in evidence.spectra.of(model=MODEL):
        style = "--" if "recovered" in row["name"] else "-"
        values = [100 * value for value in row["curve"]]
        axes.plot(row["positions"], values, style, color=COLOURS[row["name"]], label=row["name"])
    axes.set(xlabel="token", ylabel="rank utilization (%)", ylim=(0, None))
    axes.set_title("DeltaNet 4.5M, 75 % of the key channels removed (half: 50 %)")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(path / "utilization.png", dpi=130)
    plt.close(figure)


def spectra(evidence: Evidence, path: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharey=True)
    edges = 10.0 ** (LOWEST_DECADE + np.arange(BINS + 1) / BINS_PER_DECADE)
    sets = (("original", "l1", "grad", "drrqr"), ("original", "half drrqr", "half drrqr recovered"))
    for axes, names, title in zip(
        panels, sets, ("75 % removed", "50 % removed, before and after recovery"), strict=True
    ):
        for name in names:
            row = evidence.state(name)
            counts = np.array(row["histogram"], dtype=float)
            looks = counts.sum() / row["widest"]
            axes.stairs(counts / looks, edges, color=COLOURS[name], label=name, linewidth=1.6)
        axes.set(xscale="log", xlim=(1e-3, 30), xlabel="singular value", title=title)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left")
    layer, head = evidence.state("original")["head"]
    panels[0].set_ylabel(f"singular values of a state (layer {layer}, head {head})")
    figure.savefig(path / "spectra.png", dpi=130)
    plt.close(figure)


def pca(evidence: Evidence, path: Path) -> None:
    methods = {
        "pca adversarial before": "PCA, smallest, before",
        "pca proper before": "PCA, largest, before",
        "pca adversarial after": "PCA, smallest, after SiLU",
        "grad": "grad",
        "drrqr": "drrqr",
        "product": "product",
        "pca proper after": "PCA, largest, after SiLU",
    }
    models = [
        name
        for name in dict.fromkeys(row["model"] for row in evidence.pca.rows)
        if any(row["model"] == name and row["method"] == "grad" for row in evidence.pca.rows)
    ]
    figure, panels = plt.subplots(1, len(models), figsize=(4 * len(models) + 2, 3.6), sharey=True)
    for axes, model in zip(np.atleast_1d(panels), models, strict=True):
        base = evidence.pca.of(model=model, method="none")
        for place, method in enumerate(methods):
            found = change(evidence.pca.of(model=model, method=method, keep=0.5), base)
            bounds = [[max(found.estimate - found.low, 0)], [max(found.high - found.estimate, 0)]]
            axes.barh(place, found.estimate, xerr=bounds, color="#56B4E9", ecolor="#000000")
            axes.annotate(
                f" {found.estimate:+.3f}", (max(found.high, 1e-4), place), va="center", fontsize=8
            )
        axes.set(xscale="log", xlim=(1e-3, 60), title=model, xlabel="nats above the original")
        axes.set_yticks(range(len(methods)), list(methods.values()))
        axes.grid(alpha=0.3, axis="x")
    figure.savefig(path / "pca.png", dpi=130)
    plt.close(figure)


def recall_by_layer(path: Path) -> None:
    """Half of the bytes, spread evenly or away from the first layer (rows of studies/recall)."""
    models = {"tiny-gated_deltanet6": "Gated DeltaNet, 6 layers", "tiny-qwen3_5_hybrid": "hybrid"}
    figure, panels = plt.subplots(1, len(models), figsize=(9, 3.6), sharey=True)
    for axes, (model, title) in zip(panels, models.items(), strict=True):
        lines = (RESULTS / "recall" / f"layers-{model}.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        for kind, colour in (("uniform", "#D55E00"), ("first whole", "#0072B2")):
            found = {
                row["part"]: row["recall 32"]
                for row in rows
                if row.get("kind") == kind and row.get("axis") == "keys" and row["refit"] == "text"
            }
            parts = sorted(found)
            middle = [100 * found[part][0] for part in parts]
            half = [50 * (found[part][2] - found[part][1]) for part in parts]
            axes.errorbar(
                [100 * part for part in parts], middle, half, color=colour, marker="o", label=kind
            )
        axes.set(title=title, xlabel="bytes of the state kept (%)", ylim=(0, 105))
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("recall at 32 pairs (%)")
    panels[1].legend(frameon=False, loc="lower right")
    figure.savefig(path / "recall-by-layer.png", dpi=130)
    plt.close(figure)


def draw(evidence: Evidence, path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    plt.rcParams["figure.constrained_layout.use"] = True
    utilization(evidence, path)
    spectra(evidence, path)
    pca(evidence, path)
    recall_by_layer(path)
