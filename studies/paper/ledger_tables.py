"""The tables of results/paper.md, except those of the claims."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median

from claims import METHODS, SMALL, Evidence
from claims_pca import ADVERSARIAL, AFTER, PROPER, measured
from figures import change, mean, nats, perplexity, ratio, table, times
from ledger_beyond import beyond_rows
from ledger_costs import engine_text, gpu_table
from ledger_quality import quality_table, recall, recall_table, recipe_text, tasks_table


def coupling_table(evidence: Evidence) -> str:
    model = "tiny-delta_net"
    base, rows = evidence.cut(model, "none"), []
    for method in METHODS[1:]:
        cells = [method]
        for score in ("qk", "k", "q"):
            cut = evidence.cut(model, method, score=score)
            cells.append(f"{perplexity(cut):.0f}: {nats(change(cut, base))}")
        rows.append(cells)
    return table(["method", "K, Q", "K", "Q"], rows)


def pca_table(evidence: Evidence) -> str:
    methods = [ADVERSARIAL, PROPER, "pca adversarial after", AFTER, "grad", "drrqr", "product"]
    models = measured(evidence)
    base = {model: evidence.projected(model, "none") for model in models}
    rows = [["0 %", "", *(f"{perplexity(method_rows):.0f}" for method_rows in base.values())]]
    for keep in (0.25, 0.5):
        for method in methods:
            cells = [f"{100 - 100 * keep:.0f} %", method]
            for model in models:
                method_rows = evidence.projected(model, method, keep)
                cells.append(
                    f"{perplexity(method_rows):.0f}: {nats(change(method_rows, base[model]))}"
                )
            rows.append(cells)
    ranges = []
    for model in models:
        bends: list[float] = []
        for row in evidence.projected(model, "bend"):
            bends += row["bend"]
        ranges.append(f"{min(bends):.0%} to {max(bends):.0%}")
    rows.append(["", "SiLU's output that is not linear in its input, by layer", *ranges])
    return table(["removed", "method", *models.values()], rows)


def seeds_table(evidence: Evidence) -> str:
    """Perplexity and recall of the small models before pruning, by training seed."""
    rows = []
    for kind, name in SMALL.items():
        for seed, row in zip(evidence.seeds(kind), evidence.projected(kind, "none"), strict=True):
            rows.append([name, f"{seed}", f"{perplexity([row]):.0f}", recall([row])])
    return table(["filters", "seed", "perplexity", "recall"], rows)


def calibration_table(evidence: Evidence) -> str:
    rows, filters = (
        [],
        {"model": "tiny-delta_net", "method": "drrqr", "tolerance": 1.5, "keep": 0.5},
    )
    base = evidence.calibration.select(model="tiny-delta_net", method="none")
    for size in sorted({r["tokens"] for r in evidence.calibration.select(**filters)}):
        matches = evidence.calibration.select(**filters, tokens=size)
        samples = ", ".join(f"{mean([r], 'nll') - mean(base, 'nll'):.3f}" for r in matches)
        rows.append([f"{size:,}", nats(change(matches, base)), samples])
    return table(["calibration tokens", "50 % removed, nats", "samples"], rows)


def tolerance_table(evidence: Evidence) -> str:
    rows, filters = [], {"model": "tiny-delta_net", "method": "drrqr", "tokens": 5120, "keep": 0.5}
    base = evidence.calibration.select(model="tiny-delta_net", method="none")
    for tolerance in sorted({r["tolerance"] for r in evidence.calibration.select(**filters)}):
        matches = evidence.calibration.select(**filters, tolerance=tolerance)
        swaps, heads = sum(r["swaps"] for r in matches), sum(r["heads"] for r in matches)
        changed = fmean(r["channels changed"] for r in matches)
        cells = ["no swaps" if tolerance > 100 else f"{tolerance:g}", f"{swaps} in {heads} heads"]
        cells += [f"{max(r['most swaps'] for r in matches)}", f"{changed:.2%}"]
        rows.append([*cells, nats(change(matches, base))])
    header = ["f", "swaps", "most in a head", "channels changed", "50 % removed, nats"]
    return table(header, rows)


def rank_table(evidence: Evidence) -> str:
    rows = []
    for row in evidence.spectra.select(model="tiny-delta_net"):
        ranks = row["effective rank"]
        cells = [row["name"], f"{row['widest']}", f"{fmean(ranks):.2f}"]
        cells += [f"{fmean(ranks) / row['widest']:.1%}"]
        cells += [f"{median(row[f'{side} condition']):.0f}" for side in ("key", "query")]
        rows.append(cells)
    header = ["model", "largest rank", "effective rank", "utilization"]
    return table([*header, "κ of keys (median head)", "κ of queries"], rows)


def speed_table(evidence: Evidence) -> str:
    rows = []
    for kind in ("delta_net", "gated_deltanet"):
        for width in (128, 64, 32, 16):
            cells = [kind, f"{width}"]
            for scope in ("mixer", "model"):
                filters = {"kind": kind, "what": scope, "device": "cpu"}
                row = evidence.speed.select(**filters, width=width)[0]
                base = evidence.speed.select(**filters, width=128)[0]
                tokens = row["batch"] * row["time"] / median(row["seconds"])
                cells += [f"{tokens:,.0f}", times(ratio(row, base))]
                cells += [f"{row['bytes'] / 2**20:.1f} MiB", f"{row['bytes'] / base['bytes']:.2f}"]
            rows.append(cells)
    header = ["kind", "keys", "mixer, tokens/s", "speedup", "memory", "part"]
    return table([*header, "model, tokens/s", "speedup", "memory", "part"], rows)


def beyond_table(evidence: Evidence) -> str:
    return table(
        ["question", "measured on the 4.5M DeltaNet unless said", "more"],
        beyond_rows(evidence),
        right=False,
    )


TABLES: dict[str, Callable[[Evidence], str]] = {
    "quality": quality_table,
    "recall": recall_table,
    "tasks": tasks_table,
    "recipe": recipe_text,
    "coupling": coupling_table,
    "pca": pca_table,
    "seeds": seeds_table,
    "calibration": calibration_table,
    "tolerance": tolerance_table,
    "rank": rank_table,
    "speed": speed_table,
    "beyond": beyond_table,
    "engine": engine_text,
    "gpu": gpu_table,
}
