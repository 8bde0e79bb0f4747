"""The tables of docs/paper.md that stand beside the claims."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median

from claims import NAMES, Evidence
from figures import Row, change, mean, nats, perplexity, ratio, times
from ledger_beyond import beyond_rows

METHODS = ("rand", "l1", "s_wanda", "grad", "drrqr")


def table(header: list[str], rows: list[list[str]], *, right: bool = True) -> str:
    rule = ["---"] + ["---:" if right else "---"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def recall(rows: list[Row]) -> str:
    return " / ".join(f"{mean(rows, f'recall {pairs}'):.2f}" for pairs in (16, 32, 63))


def quality_table(evidence: Evidence) -> str:
    """Before and after recovery; a cell that was not run is left empty."""
    header = ["model", "removed", "method", "perplexity", "nats above the original", "recall"]
    header += ["after recovery", "nats above the control", "recall after"]
    rows = []
    for model, name in NAMES.items():
        base = evidence.cut(model, "none")
        after = _after(evidence, model, "none", 1.0)
        row = [name, "", "original", f"{perplexity(base):.1f}", "", recall(base)]
        control = f"{perplexity(after):.1f} (control)" if after else ""
        rows.append([*row, control, "", recall(after) if after else ""])
        for keep in (0.25, 0.5, 0.6, 0.7):
            for method in METHODS:
                rows += _quality_row(evidence, model, name, method, keep)
    return table(header, rows)


def _quality_row(e: Evidence, model: str, name: str, method: str, keep: float) -> list[list[str]]:
    try:
        cut = e.cut(model, method, keep)
    except LookupError:
        return []
    cost = change(cut, e.cut(model, "none"))
    cells = [name, f"{100 - 100 * keep:.0f} %", method, f"{perplexity(cut):.1f}", nats(cost)]
    after = _after(e, model, method, keep)
    if not after:
        return [[*cells, recall(cut), "", "", ""]]
    control = _after(e, model, "none", 1.0)
    over = nats(change(after[:1], control[:1]))
    return [[*cells, recall(cut), f"{perplexity(after[:1]):.1f}", over, recall(after[:1])]]


def _after(e: Evidence, model: str, method: str, keep: float) -> list[Row]:
    try:
        return e.recovered(method, keep, model)
    except LookupError:
        return []


def coupling_table(evidence: Evidence) -> str:
    model = "tiny-delta_net"
    base, rows = evidence.cut(model, "none"), []
    for method in METHODS[1:]:
        cells = [method]
        for score in ("qk", "k", "q"):
            found = evidence.cut(model, method, score=score)
            cells.append(f"{perplexity(found):.0f}: {nats(change(found, base))}")
        rows.append(cells)
    return table(["method", "K, Q", "K", "Q"], rows)


def pca_table(evidence: Evidence) -> str:
    methods = ["pca adversarial before", "pca proper before", "pca adversarial after"]
    methods += ["pca proper after", "grad", "drrqr", "product"]
    models = list(dict.fromkeys(row["model"] for row in evidence.pca.rows))
    base = {model: evidence.pca.of(model=model, method="none") for model in models}
    rows = [["0 %", "", *(f"{perplexity(base[model]):.0f}" for model in models)]]
    for keep in (0.25, 0.5):
        for method in methods:
            cells = [f"{100 - 100 * keep:.0f} %", method]
            for model in models:
                found = evidence.pca.of(model=model, method=method, keep=keep)
                cells.append(f"{perplexity(found):.0f}: {nats(change(found, base[model]))}")
            rows.append(cells)
    bends = [evidence.pca.of(model=model, method="bend")[0]["bend"] for model in models]
    shown = [f"{min(bend):.0%} to {max(bend):.0%}" for bend in bends]
    rows.append(["", "SiLU's output that is not linear in its input, by layer", *shown])
    return table(["removed", "method", *models], rows)


def calibration_table(evidence: Evidence) -> str:
    rows, what = [], {"model": "tiny-delta_net", "method": "drrqr", "tolerance": 1.5, "keep": 0.5}
    base = evidence.calibration.of(model="tiny-delta_net", method="none")
    for size in sorted({r["tokens"] for r in evidence.calibration.of(**what)}):
        found = evidence.calibration.of(**what, tokens=size)
        each = ", ".join(f"{mean([r], 'nll') - mean(base, 'nll'):.3f}" for r in found)
        rows.append([f"{size:,}", nats(change(found, base)), each])
    return table(["calibration tokens", "50 % removed, nats", "samples"], rows)


def tolerance_table(evidence: Evidence) -> str:
    rows, what = [], {"model": "tiny-delta_net", "method": "drrqr", "tokens": 5120, "keep": 0.5}
    base = evidence.calibration.of(model="tiny-delta_net", method="none")
    for tolerance in sorted({r["tolerance"] for r in evidence.calibration.of(**what)}):
        found = evidence.calibration.of(**what, tolerance=tolerance)
        swaps, heads = sum(r["swaps"] for r in found), sum(r["heads"] for r in found)
        changed = fmean(r["channels changed"] for r in found)
        cells = ["no swaps" if tolerance > 100 else f"{tolerance:g}", f"{swaps} in {heads} heads"]
        cells += [f"{max(r['most swaps'] for r in found)}", f"{changed:.2%}"]
        rows.append([*cells, nats(change(found, base))])
    header = ["f", "swaps", "most in a head", "channels changed", "50 % removed, nats"]
    return table(header, rows)


def rank_table(evidence: Evidence) -> str:
    rows = []
    for row in evidence.spectra.of(model="tiny-delta_net"):
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
            for what in ("mixer", "model"):
                of = {"kind": kind, "what": what, "device": "cpu"}
                row = evidence.speed.of(**of, width=width)[0]
                base = evidence.speed.of(**of, width=128)[0]
                tokens = row["batch"] * row["time"] / median(row["seconds"])
                cells += [f"{tokens:,.0f}", times(ratio(row, base))]
                cells += [f"{row['bytes'] / 2**20:.1f} MiB", f"{row['bytes'] / base['bytes']:.2f}"]
            rows.append(cells)
    header = ["kind", "keys", "mixer, tokens/s", "speedup", "memory", "part"]
    return table([*header, "model, tokens/s", "speedup", "memory", "part"], rows)


def beyond_table(evidence: Evidence) -> str:
    return table(
        ["question", "measured on the 4.5M DeltaNet unless said", "more"],
        beyond_rows(),
        right=False,
    )


TABLES: dict[str, Callable[[Evidence], str]] = {
    "quality": quality_table,
    "coupling": coupling_table,
    "pca": pca_table,
    "calibration": calibration_table,
    "tolerance": tolerance_table,
    "rank": rank_table,
    "speed": speed_table,
    "beyond": beyond_table,
}
