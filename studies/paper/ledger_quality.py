"""What cuts cost before and after recovery: NLL, recall and zero-shot tasks."""

from __future__ import annotations

import math
from statistics import fmean

from claims import KEPT, METHODS, NAMES, SHORT, Evidence
from claims_recovery import CHANCE, above_chance, answers
from figures import Row, change, interval, mean, nats, perplexity, points, table
from ledger_costs import RECOVERY

TASKS = {
    "arc_easy acc_norm": "ARC-e",
    "arc_challenge acc_norm": "ARC-c",
    "hellaswag acc_norm": "Hella.",
    "winogrande acc": "Wino.",
    "piqa acc_norm": "PIQA",
    "lambada_openai acc": "LMB.",
}


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


BATCH = 16 * 256  # tokens of a step
