"""Tables and a figure from the results of compare_methods.py.

    python studies/plot_methods.py results/methods.jsonl results/methods.md

Fills the places `<!-- KIND MODEL -->` ... `<!-- end -->` of the Markdown file with tables (KIND is
methods, scores or calibration) and draws `methods.png` next to the results.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt

from arguments import path_parser

Row = dict[str, Any]
FIRST = 128  # windows that every case was measured on
KEEP = (0.75, 0.5, 0.25)
STYLES = {  # Okabe and Ito's colours, one of Tol's, and a marker each
    "rand": ("#000000", "x"),
    "l1": ("#999999", "v"),
    "s_wanda": ("#E69F00", "^"),
    "grad": ("#0072B2", "s"),
    "drrqr": ("#D55E00", "o"),
    "drrqr normalized": ("#CC79A7", "D"),
    "energy": ("#56B4E9", "P"),
    "product": ("#009E73", "*"),
    "ghost": ("#882255", "h"),
}
IDENTITY = ("calibration", "method", "score", "keep", "seed")
PLAIN = {"calibration": "text", "score": "qk"}


class Results:
    """The results of one model; of equal cases the one with the most windows counts."""

    def __init__(self, rows: list[Row]) -> None:
        rows = sorted(rows, key=lambda row: int(row["windows"]))
        self.rows = list({tuple(map(row.get, IDENTITY)): row for row in rows}.values())
        self.original = next(row for row in rows if row["method"] == "none")

    def select(self, **wanted: Any) -> list[Row]:
        if wanted["method"] == "rand":
            wanted.pop("score", None)
        return [row for row in self.rows if wanted.items() <= row.items()]

    def mean(self, figure: str, **wanted: Any) -> float:
        rows = self.select(**wanted)
        return fmean(self._figure(row, figure) for row in rows) if rows else math.nan

    def _figure(self, row: Row, figure: str) -> float:
        if figure.startswith("rise"):
            name = figure.replace("rise", "nll")
            return float(row[name] - self.original[name])
        return float(row["recall"][figure] if figure.isdigit() else row[figure])

    def recall(self, **wanted: Any) -> str:
        return " / ".join(show(self.mean(p, **wanted), 2) for p in self.original["recall"])


def show(value: float, digits: int = 3) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def table(header: list[str], rows: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def methods_table(results: Results) -> str:
    pairs = " / ".join(results.original["recall"])
    header = ["method", "keep", "NLL", "NLL increase", "on all windows", "perplexity", "KL"]
    header.append(f"recall at {pairs} pairs")
    nll = results.original["nll_first"]
    original_cells = [show(nll), "", "", show(math.exp(nll), 1), "", results.recall(method="none")]
    rows = [["original", "100 %", *original_cells]]
    for method in STYLES:
        for keep in KEEP:
            case = {**PLAIN, "method": method, "keep": keep}
            on_all_windows = [row["windows"] > FIRST for row in results.select(**case)]
            if not on_all_windows:  # not measured on this model
                continue
            nll, rise, kl = (
                results.mean(name, **case) for name in ("nll_first", "rise_first", "kl")
            )
            rise_all = results.mean("rise", **case) if all(on_all_windows) else math.nan
            figures = [show(nll), show(rise), show(rise_all), show(math.exp(nll), 1), show(kl)]
            rows.append([method, f"{keep * 100:.0f} %", *figures, results.recall(**case)])
    return table(header, rows)


def scores_table(results: Results) -> str:
    header = ["method", *(f"NLL increase, keep {keep * 100:.0f} %: qk / q / k" for keep in KEEP)]
    header.append("recall at 32 pairs, keep 50 %: qk / q / k")
    rows = []
    for method in STYLES:
        if method not in ("rand", "ghost"):
            case = {"method": method, "calibration": "text"}

            def cell(figure: str, keep: float, case: Row = case) -> str:
                means = (results.mean(figure, **case, keep=keep, score=s) for s in ("qk", "q", "k"))
                return " / ".join(map(show, means))

            rows.append([method, *(cell("rise_first", keep) for keep in KEEP), cell("32", 0.5)])
    return table(header, rows)


def calibration_table(results: Results) -> str:
    pairs = " / ".join(results.original["recall"])
    header = ["method", "keep", "calibration", "NLL increase", f"recall at {pairs} pairs"]
    rows = []
    for method in ("drrqr", "grad", "energy", "product"):
        for keep in (0.5, 0.25):
            for kind in ("text", "half", "recall"):
                case = {"score": "qk", "calibration": kind, "method": method, "keep": keep}
                rise = show(results.mean("rise_first", **case))
                rows.append([method, f"{keep * 100:.0f} %", kind, rise, results.recall(**case)])
    return table(header, rows)


TABLES = {
    "methods": methods_table,
    "scores": scores_table,
    "calibration": calibration_table,
}


def draw(models: dict[str, Results], path: Path) -> None:
    size = (3.2 * len(models), 6.6)
    figure, axes = plt.subplots(2, len(models), figsize=size, squeeze=False, sharex=True)
    for column, (name, results) in enumerate(models.items()):
        loss, recall = axes[:, column]
        for method, (colour, marker) in STYLES.items():
            cases = [{**PLAIN, "method": method, "keep": keep} for keep in KEEP]
            for axis, quantity in ((loss, "rise_first"), (recall, "32")):
                values = [results.mean(quantity, **case) for case in cases]
                kept_percent = [100 * keep for keep in KEEP]
                axis.plot(
                    kept_percent, values, color=colour, marker=marker, markersize=7, label=method
                )
        recall.axhline(results.original["recall"]["32"], color="black", linestyle=":")
        recall.annotate("original", (40, results.original["recall"]["32"]), va="bottom")
        loss.set(title=name, yscale="log")
        recall.set(xlabel="channels kept (%)", xticks=[75, 50, 25], xlim=(79, 21), ylim=(0, 1.08))
        loss.grid(alpha=0.3), recall.grid(alpha=0.3)
    axes[0, 0].set_ylabel("increase of NLL per token (nats)")
    axes[1, 0].set_ylabel("recall accuracy, 32 pairs")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = path_parser(__doc__, "results", "document")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.results.read_text().splitlines()]
    names = dict.fromkeys(row["model"] for row in rows)
    models = {name: Results([row for row in rows if row["model"] == name]) for name in names}

    def fill(place: re.Match[str]) -> str:
        kind, model = place[1], place[2]
        return f"<!-- {kind} {model} -->\n\n{TABLES[kind](models[model])}\n\n<!-- end -->"

    text = options.document.read_text()
    pattern = rf"<!-- ({'|'.join(TABLES)}) (\S+) -->.*?<!-- end -->"
    options.document.write_text(re.sub(pattern, fill, text, flags=re.DOTALL))
    plt.rcParams["figure.constrained_layout.use"] = True
    draw(models, options.results.with_suffix(".png"))


if __name__ == "__main__":
    main()
