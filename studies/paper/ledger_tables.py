"""The tables of results/paper.md, except those of the claims: costs before and after recovery by
method, ablations, and costs calculated from shapes and counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, median

from claims import KEPT, METHODS, NAMES, SHORT, SMALL, Evidence
from claims_pca import ADVERSARIAL, AFTER, PROPER, measured
from claims_recovery import CHANCE, above_chance, answers
from figures import Row, change, interval, mean, nats, perplexity, points, ratio, table, times
from ledger_beyond import beyond_rows

TASKS = {
    "arc_easy acc_norm": "ARC-e",
    "arc_challenge acc_norm": "ARC-c",
    "hellaswag acc_norm": "Hella.",
    "winogrande acc": "Wino.",
    "piqa acc_norm": "PIQA",
    "lambada_openai acc": "LMB.",
}
BATCH = 16 * 256  # tokens of a step
HEADS, CHANNELS, KEPT_CHANNELS, HIDDEN = 16, 128, 64, 2048  # of DeltaNet 1.3B, cut in half
PARAMETERS = 1.366e9  # of fla-hub/delta_net-1.3B-100B
RECOVERY = 32 * 1024 * 2048  # tokens of the paper's recovery: 32k samples of 2,048
PEAK, USED = 989e12, 0.4  # FLOP/s of an H100 in bfloat16 (dense), and the part that we assume
PASSES = 8  # FLOP a parameter and token: 6 for the student's two passes, 2 for the teacher's one
SAMPLES = 3


def quality_table(evidence: Evidence) -> str:
    """Perplexity before and after recovery; cells that were not run are empty."""
    rows = []
    for model, name in NAMES.items():
        base, control = evidence.cut(model, "none"), after(evidence, model, "none", 1.0)
        cells = [name, "", "original", f"{perplexity(base):.1f}", ""]
        if control:
            cells += [f"{perplexity(control):.1f} (control)", nats(change(control, base))]
        rows.append(cells + [""] * (8 - len(cells)))
        for keep, method in ((keep, method) for keep in KEPT for method in METHODS):
            cut, late = evidence.cut(model, method, keep), after(evidence, model, method, keep)
            cells = [name, removed(keep), method, f"{perplexity(cut):.1f}", nats(change(cut, base))]
            if late:
                over = [nats(change(late, other)) for other in (base, control)]
                cells += [f"{perplexity(late):.1f}", *over]
            rows.append(cells + [""] * (8 - len(cells)))
    header = ["model", "removed", "method", "perplexity", "nats above the original"]
    header += ["after recovery", "nats above the original", "nats above the control"]
    return table(header, rows)


def recall_table(evidence: Evidence) -> str:
    rows = []
    for model, name in NAMES.items():
        base, control = evidence.cut(model, "none"), after(evidence, model, "none", 1.0)
        shown = f"{recall(control)} (control)" if control else ""
        rows.append([name, "", "original", recall(base), "", shown, ""])
        for keep, method in ((keep, method) for keep in KEPT for method in METHODS):
            cut, late = evidence.cut(model, method, keep), after(evidence, model, method, keep)
            lost = points(change(cut, base, "recall 32"))
            cells = [name, removed(keep), method, recall(cut), lost]
            if late and control:
                cells += [recall(late), points(change(late, control, "recall 32"))]
            rows.append(cells + [""] * (7 - len(cells)))
    header = ["model", "removed", "method", "recall", "32 pairs, against the original"]
    return table([*header, "after recovery", "32 pairs, against the control"], rows)


def removed(keep: float) -> str:
    return f"{100 - 100 * keep:.0f} %"


def recall(rows: list[Row]) -> str:
    return " / ".join(f"{mean(rows, f'recall {pairs}'):.2f}" for pairs in (16, 32, 63))


def after(e: Evidence, model: str, method: str, keep: float) -> list[Row]:
    """Rows after recovery; none unless all methods were recovered at this width."""
    widths = e.recovered_widths(model)
    if not widths if method == "none" else keep not in widths:
        return []
    return e.recovered(method, keep, model)


def tasks_table(evidence: Evidence) -> str:
    """The columns of the paper's Tables 9 to 12, and accuracy at chance."""
    chances = [f"{100 * chance:.1f}" for chance in CHANCE.values()]
    rows = [["", "chance", "", *chances, f"{100 * fmean(CHANCE.values()):.1f}", "", ""]]
    base = evidence.tasks.select(stage="cut", method="none")[0]
    for stage, title in (("cut", "no"), ("recovered", "yes")):
        for method in ("none", *METHODS):
            row = evidence.tasks.select(stage=stage, method=method)[0]
            # lm-eval keeps the log-likelihood of each last word
            lambada = math.exp(-fmean(row["lambada_openai perplexity"]))
            cells = [title, "original" if method == "none" else method, f"{lambada:.1e}"]
            cells += [f"{100 * mean([row], task):.1f}" for task in TASKS]
            cells += [f"{100 * fmean(mean([row], task) for task in TASKS):.1f}"]
            same = row is base
            loss = "" if same else points(interval(answers(base), answers(row)))
            rows.append([*cells, points(above_chance(row)), loss])
    header = ["recovered", "method", "LMB. ppl", *TASKS.values(), "average"]
    return table([*header, "five guessable tasks above chance", "all against the original"], rows)


def recipe_text(evidence: Evidence) -> str:
    """How many tokens recovery trains on, here and in the paper."""
    longest = evidence.longest_recovery()
    text = (
        f"Recovery reads {SHORT:,} tokens ({SHORT // BATCH} steps of 16 x 256) at a learning rate "
        f"of 2e-3. Otherwise it follows the recipe of the paper's Appendix A, which reads "
        f"{RECOVERY / SHORT:,.0f} times as many tokens."
    )
    if longest > SHORT:
        samples = len(evidence.recovered("none", tokens=longest))
        text += (
            f" A longer recovery of Grad, DRRQR and the control at 50 % reads {longest:,} tokens; "
            f"it has {samples} of 3 samples."
        )
    return text


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
        left=3,
    )


def engine_text(_: Evidence) -> str:
    """Multiplications and memory that a projection after SiLU would cost an engine."""
    per_side = HEADS * CHANNELS * KEPT_CHANNELS  # multiplications of queries; keys need as many
    projections = 4 * HIDDEN * HIDDEN  # queries, keys, values, output
    return (
        f"For {HEADS} heads of {CHANNELS} channels cut to {KEPT_CHANNELS}, that is 2 x "
        f"{per_side:,} multiplications per token and layer. The four projections of a layer with "
        f"hidden size {HIDDEN:,} take {projections:,}, so it adds "
        f"{2 * per_side / projections:.1%}. The matrix takes {2 * per_side // 1024} KiB per layer "
        f"in bfloat16."
    )


def hours(tokens: float) -> float:
    return PASSES * PARAMETERS * tokens / (PEAK * USED) / 3600


def gpu_table(_: Evidence) -> str:
    runs = SAMPLES * (len(KEPT) * len(METHODS) + 1)  # and a control each
    flop = PASSES * PARAMETERS * RECOVERY
    rows = [
        ["tokens of one recovery (32k samples of 2,048)", f"{RECOVERY:,}"],
        ["compared with the recovery measured here", f"{RECOVERY / SHORT:,.0f} times"],
        [f"one recovery of {PARAMETERS / 1e9:.2f}B parameters", f"{flop:.1e} FLOP"],
        [
            f"its time at {USED:.0%} of an H100's {PEAK / 1e12:.0f} TFLOP/s",
            f"{hours(RECOVERY):.1f} h",
        ],
        ["recoveries of one model, three samples", f"{runs}, {runs * hours(RECOVERY):.0f} h"],
        ["the same with `--samples 1`", f"{runs // 3}, {runs / 3 * hours(RECOVERY):.0f} h"],
    ]
    return table(["on one H100, calculated and not measured", ""], rows)


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
