"""The tables of results/speech.md: a model that others trained, neovad (Mamba-2), on real speech.

    python studies/speech.py page

results/README.md says which commit has the code that measured the lines of results/speech.jsonl.
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt

from runner import Row, fill, read_rows, start, table

COLOURS = {  # Okabe and Ito's
    "product": "#0072B2", "energy": "#009E73", "drrqr": "#56B4E9", "s_wanda": "#E69F00",
    "l1": "#D55E00", "rand": "#000000", "ghost": "#CC79A7",
}  # fmt: skip
DEFAULTS = ("product", "readout_greedy", "default")
"""The methods that a command takes by default, for keys, values and both."""


def cell(figures: list[list[float]], scale: float, digits: int) -> str:
    """Mean over samples of clips, with the lowest and highest end of their intervals."""
    estimates, lows, highs = zip(*figures, strict=True)
    numbers = (mean(estimates), min(lows), max(highs))
    estimate, low, high = (f"{scale * number:.{digits}f}" for number in numbers)
    return f"{estimate} ({low} to {high})"


def by_cut(rows: list[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """(axis, what is kept, method) -> the lines of all samples; widths by layer may differ."""
    cuts: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        kept = row.get("to") or f"{row['share']:.0%} of the keys"
        cuts.setdefault((row["axis"], kept, row["method"]), []).append(row)
    return cuts


def losses_table(rows: list[Row]) -> str:
    lines = []
    for cut, same in by_cut(rows).items():
        kl = cell([row["kl"] for row in same], 1, 4)
        lines.append([*cut, kl, cell([row["other class"] for row in same], 100, 1)])
    return table(["axis", "kept", "method", "KL, nats", "frames with another class, %"], lines)


def recovery_table(rows: list[Row], recovered: list[Row]) -> str:
    """Before and after recovery, of the samples that were recovered."""
    lines = []
    for cut, after in by_cut(recovered).items():
        samples, cells = {row["sample"] for row in after}, list[str]()
        before = [row for row in by_cut(rows)[cut] if row["sample"] in samples]
        for figure, scale, digits in (("kl", 1, 4), ("other class", 100, 1)):
            for same in (before, after):
                cells.append(cell([row[figure] for row in same], scale, digits))
        lines.append([*cut[1:], *cells])
    header = ["kept", "method", "KL, nats", "after", "frames with another class, %", "after"]
    return table(header, lines)


def draw(rows: list[Row], path: Path) -> None:
    """The frames whose class changes: by keys kept and method, and by the bytes of a state."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2))
    points: dict[str, list[tuple[int, float]]] = {}
    bytes_kept: dict[str, list[tuple[float, float]]] = {}
    for (axis, kept, method), same in by_cut(rows).items():
        changed = 100 * mean(row["other class"][0] for row in same)
        keys, values = (int(size) for size in kept.split("x")) if "x" in kept else (0, 64)
        if axis == "keys":
            points.setdefault(method, []).append((keys, changed))
        if keys and method in DEFAULTS:
            bytes_kept.setdefault(axis, []).append((keys * values / 4096 * 100, changed))
    for method, line in points.items():
        left.plot(*zip(*line, strict=True), "o-", color=COLOURS[method], label=method)
    left.set(xlabel="keys kept of 64", ylabel="frames with another class, %", xticks=[16, 32, 48])
    for (axis, places), colour in zip(bytes_kept.items(), COLOURS.values(), strict=False):
        right.plot(*zip(*places, strict=True), "o-", color=colour, label=axis)
    right.set(xlabel="bytes of the state, %", xticks=[12.5, 25, 37.5, 50, 75])
    for panel in (left, right):
        panel.set_yscale("log")
        panel.legend(frameon=False, ncols=2, fontsize=8, loc="lower right")
        panel.invert_xaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def page(results: Path) -> None:
    rows, recovered = (read_rows(results / f"speech{kind}.jsonl") for kind in ("", "-recovery"))
    draw(rows, results / "speech.png")
    contents = {"losses": losses_table(rows), "recovery": recovery_table(rows, recovered)}
    fill(results / "speech.md", contents)


if __name__ == "__main__":
    start(page)
