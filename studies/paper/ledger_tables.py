"""The tables of results/paper.md, except those of the claims: costs before and after recovery by
method, ablations, and costs calculated from shapes and counts."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, median

from claims import KEPT, METHODS, NAMES, SHORT, SMALL, Evidence
from claims_pca import ADVERSARIAL, AFTER, PROPER, measured
from figures import Row, change, mean, nats, perplexity, points, table

BATCH = 16 * 256  # tokens of a step
HEADS, CHANNELS, KEPT_CHANNELS, HIDDEN = 16, 128, 64, 2048  # of DeltaNet 1.3B, cut in half
PARAMETERS = 1.366e9  # of fla-hub/delta_net-1.3B-100B
RECOVERY = 32 * 1024 * 2048  # tokens of the paper's recovery: 32k samples of 2,048
PEAK, USED = 989e12, 0.4  # FLOP/s of an H100 in bfloat16 (dense), and the part that we assume
PASSES = 8  # FLOP a parameter and token: 6 for the student's two passes, 2 for the teacher's one
SAMPLES = 3


def quality_table(evidence: Evidence) -> str:
    """Perplexity before and after recovery, with half of the keys."""
    rows = []
    for model, name in NAMES.items():
        base, control = evidence.cut(model, "none"), evidence.recovered("none", model=model)
        cells = [name, "original", f"{perplexity(base):.1f}", ""]
        rows.append([*cells, f"{perplexity(control):.1f}", nats(change(control, base)), ""])
        for method in METHODS:
            cut, late = evidence.cut(model, method), evidence.recovered(method, model=model)
            cells = [name, method, f"{perplexity(cut):.1f}", nats(change(cut, base))]
            over = [nats(change(late, other)) for other in (base, control)]
            rows.append([*cells, f"{perplexity(late):.1f}", *over])
    header = ["model", "method", "perplexity", "nats above the original"]
    header += ["after recovery", "nats above the original", "nats above the control"]
    return table(header, rows)


def recall_table(evidence: Evidence) -> str:
    """Recall before and after recovery, with half of the keys."""
    rows = []
    for model, name in NAMES.items():
        base, control = evidence.cut(model, "none"), evidence.recovered("none", model=model)
        rows.append([name, "original", recall(base), "", recall(control), ""])
        for method in METHODS:
            cut, late = evidence.cut(model, method), evidence.recovered(method, model=model)
            lost = [points(change(a, b, "recall 32")) for a, b in ((cut, base), (late, control))]
            rows.append([name, method, recall(cut), lost[0], recall(late), lost[1]])
    header = ["model", "method", "recall", "32 pairs, against the original"]
    return table([*header, "after recovery", "32 pairs, against the control"], rows)


def recall(rows: list[Row]) -> str:
    return "/".join(f"{mean(rows, f'recall {pairs}'):.2f}" for pairs in (16, 32, 63))


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
    methods = [ADVERSARIAL, PROPER, AFTER, "grad", "drrqr", "product"]
    models = measured(evidence)
    base = {model: evidence.projected(model, "none") for model in models}
    rows = [["original", *(f"{perplexity(method_rows):.0f}" for method_rows in base.values())]]
    for method in methods:
        cells = [method]
        for model in models:
            method_rows = evidence.projected(model, method, 0.5)
            cells.append(f"{perplexity(method_rows):.0f}: {nats(change(method_rows, base[model]))}")
        rows.append(cells)
    ranges = []
    for model in models:
        bends: list[float] = []
        for row in evidence.projected(model, "bend"):
            bends += row["bend"]
        ranges.append(f"{min(bends):.0%} to {max(bends):.0%}")
    rows.append(["SiLU's output that is not linear in its input, by layer", *ranges])
    return table(["method", *models.values()], rows)


def seeds_table(evidence: Evidence) -> str:
    """Perplexity and recall of the small models before pruning, by training seed."""
    rows = []
    for kind, name in SMALL.items():
        seeds = evidence.projected(kind, "none")
        perplexities = ", ".join(f"{perplexity([row]):.0f}" for row in seeds)
        recalls = ", ".join(f"{mean([row], 'recall 32'):.2f}" for row in seeds)
        rows.append([name, perplexities, recalls])
    return table(["filters", "perplexity of each seed", "recall at 32 pairs"], rows)


def calibration_table(evidence: Evidence) -> str:
    rows = []
    filters = {"model": "tiny-delta_net", "method": "drrqr", "tolerance": 1.5, "keep": 0.5}
    base = evidence.calibration.select(model="tiny-delta_net", method="none")
    for size in sorted({r["tokens"] for r in evidence.calibration.select(**filters)}):
        matches = evidence.calibration.select(**filters, tokens=size)
        samples = ", ".join(f"{mean([r], 'nll') - mean(base, 'nll'):.3f}" for r in matches)
        rows.append([f"{size:,}", nats(change(matches, base)), samples])
    return table(["calibration tokens", "50 % removed, nats", "samples"], rows)


def rank_table(evidence: Evidence) -> str:
    rows = []
    for row in evidence.spectra.select(model="tiny-delta_net"):
        if row["name"].endswith("recovered"):
            continue
        ranks = row["effective rank"]
        cells = [row["name"], f"{row['widest']}", f"{fmean(ranks):.2f}"]
        cells += [f"{fmean(ranks) / row['widest']:.1%}"]
        cells += [f"{median(row[f'{side} condition']):.0f}" for side in ("key", "query")]
        rows.append(cells)
    header = ["model", "largest rank", "effective rank", "utilization"]
    return table([*header, "κ of keys (median head)", "κ of queries"], rows)


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
    "recipe": recipe_text,
    "coupling": coupling_table,
    "pca": pca_table,
    "seeds": seeds_table,
    "calibration": calibration_table,
    "rank": rank_table,
    "engine": engine_text,
    "gpu": gpu_table,
}
