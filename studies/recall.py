"""The tables of results/recall.md, from the lines in results/recall; and those of heads and other
recall tasks, in two-axes.md and uneven.md.

    python studies/recall.py page
"""

from __future__ import annotations

from pathlib import Path

from runner import Row, fill, read_rows, start, table, with_margin

LOADS = (16, 32, 63)
WIDTHS = {"1/2 balanced": "45x45", "1/2 values": "64x32", "1/4 balanced": "32x32"}
"""Of shapes whose rows do not say them."""
PAIRS = f"recall at {' / '.join(map(str, LOADS))} pairs"


def lines_of(folder: Path, kind: str) -> list[Row]:
    paths = sorted(folder.glob(f"{kind}-*.jsonl"))
    return [row for path in paths for row in read_rows(path)]


def loss(row: Row) -> str:
    return with_margin([*row["increase"], *row["nll"][1:]], 4)


def recall(row: Row) -> str:
    return "/".join(f"{row[f'recall {pairs}'][0]:.3f}" for pairs in LOADS)


def layers_table(rows: list[Row]) -> str:
    """Uniform widths against an uncut first layer at half and a quarter of the bytes, refitted on
    text."""
    cells = []
    for row in rows:
        is_compared = row["refit"] == "text" and row["kind"] in ("uniform", "first whole")
        if is_compared and row["part"] in (1 / 2, 1 / 4):
            first, second = ("x".join(map(str, width)) for width in row["widths"][:2])
            widths = first if first == second else f"{first}, then {second}"
            fraction = f"{row['bytes']:.0%}"
            cells.append([row["model"], row["axis"], fraction, widths, loss(row), recall(row)])
    return table(["model", "axis", "state bytes", "widths", "NLL change", PAIRS], cells)


DIFFERENCES = ("nll", "recall 32", "recall 63")


def default_table(rows: list[Row]) -> str:
    """The default method against the earlier default, `drrqr` on text, paired; and how much the
    differences of another seed are away."""
    cells, distances = [], dict[str, float]()
    for row in rows:
        if row["seed"]:
            first = next(r for r in rows if is_first_seed(r, row, "model", "shape"))
            for name in DIFFERENCES:
                distance = abs(row[name]["change"][0] - first[name]["change"][0])
                distances[name] = max(distances.get(name, 0.0), distance)
            continue
        values = [
            "/".join(f"{row[f'recall {p}'][when]:.3f}" for p in LOADS)
            for when in ("earlier", "now")
        ]
        changes = [with_margin(row[name]["change"], 4) for name in DIFFERENCES]
        cells.append([row["model"], row["shape"].partition(" ")[0], *values, *changes])
    header = ["model", "state bytes", "`drrqr` on text: " + PAIRS, "default: " + PAIRS]
    nats, *shares = (distances[name] for name in DIFFERENCES)
    return (
        table([*header, "NLL change", "recall change at 32", "at 63"], cells)
        + f"\n\nThese are of seed 0; the changes of seed 1 are at most {nats:.4f} nats and "
        f"{max(shares):.3f} of recall away."
    )


def is_first_seed(row: Row, other: Row, *same: str) -> bool:
    """Whether the row is of seed 0, and equals the other in these fields."""
    return row["seed"] == 0 and all(row[field] == other[field] for field in same)


def stage_of(training: Row) -> str:
    """Tokens and learning rate of a training stage."""
    return f"{training['tokens'] / 1e6:.2f}M at {training['learning rate']:g}"


def shape_of(row: Row) -> tuple[str, str]:
    """Share of the bytes, and the shape of all layers or "by layer"."""
    share, _, kind = row["shape"].partition(" ")
    return share, WIDTHS.get(row["shape"], kind)


# Of the second stage, for all models.
LAST_STAGE = {"tokens": 2**19, "learning rate": 0.001, "recall": 0.25}


def repaired_table(rows: list[Row]) -> str:
    """Cuts after both stages against the control with the same training; all seeds in a line."""
    seeds: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        if row["kind"] == "all layers" and LAST_STAGE.items() <= row["training"][-1].items():
            first = [f"{stage['tokens'] / 1e6:.1f}M" for stage in row["training"][:-1]]
            case: tuple[str, ...] = (row["model"], *shape_of(row), "".join(first))
            seeds.setdefault(case, []).append(row["against control"])
    cells = []
    for case, changes in sorted(seeds.items(), key=lambda item: (item[0][0], item[0][1] != "1/2")):
        nats = ", ".join(with_margin(change["nll"], 4) for change in changes)
        points = [
            ", ".join(with_margin(change[f"recall {pairs}"], 1, 100) for change in changes)
            for pairs in LOADS[1:]
        ]
        cells.append([*case, nats, *points])
    header = ["model", "state bytes", "shape", "tokens for the first layer", "NLL"]
    return table([*header, *(f"recall at {pairs}, points" for pairs in LOADS[1:])], cells)


def first_layer_table(rows: list[Row]) -> str:
    """What the first layer alone still misses of its original's output while it is trained, with
    the full budget; and how far another seed ends away."""
    cells, distances = [], []
    full = [row for row in rows if row["kind"] == "first layer" and has_full_budget(row)]
    for row in full:
        errors = [error for _, error in row["held out"]]
        if row["seed"]:
            first = next(r for r in full if is_first_seed(r, row, "model", "shape", "training"))
            distances.append(abs(errors[-1] - first["held out"][-1][1]))
            continue
        leading = [row["model"], *shape_of(row), stage_of(row["training"][0])]
        shown = errors[0], errors[(len(errors) - 1) // 4], errors[-1]
        cells.append([*leading, *(f"{error:.1%}" for error in shown)])
    header = ["model", "state bytes", "shape", "tokens, learning rate", "before", "at 1/4", "after"]
    return (
        table(header, cells)
        + f"\n\nThese are of seed 0; seed 1 ends at most {max(distances):.1%} away."
    )


def has_full_budget(row: Row) -> bool:
    """Not one of the shorter or slower trainings before the settings were chosen."""
    training = row["training"][0]
    return bool(training["tokens"] >= 2**21 and training["learning rate"] == 0.002)


def heads_table(rows: list[Row]) -> str:
    cells = [[row["model"], row["part"], loss(row), recall(row)] for row in rows]
    return table(["model", "heads kept", "NLL change", PAIRS], cells)


CUTS = {
    "heads": "one value head of each pair",
    "32x64": "half of the keys",
    "64x32": "half of the values",
}


def cut_heads_table(rows: list[Row]) -> str:
    """Removed heads against removed channels at the same bytes, refitted."""
    cells = [
        [CUTS[row["cut"].split()[-1]], f"`{row['method']}`", loss(row), recall(row)]
        for row in rows
        if row["refitted"]
    ]
    return table(["removed", "chosen by", "NLL change", PAIRS], cells)


def beyond_table(rows: list[Row]) -> str:
    """A column per task on which an original scores above 2%."""
    originals = [row for row in rows if row["name"] == row["model"]]
    tasks = []
    for name, value in rows[0].items():
        if isinstance(value, list) and any(row[name][0] > 0.02 for row in originals):
            tasks.append(name)
    cells = []
    for row in rows:
        name = "original" if row["name"] == row["model"] else row["name"]
        cells.append([row["model"], name, *(f"{row[task][0]:.3f}" for task in tasks)])
    return table(["model", "checkpoint", *tasks], cells)


TABLES = {
    "layers": layers_table,
    "default": default_table,
    "repaired": repaired_table,
    "first-layer": first_layer_table,
    "heads": heads_table,
    "cut-heads": cut_heads_table,
    "beyond": beyond_table,
}


FILES = {"repaired": "repair", "first-layer": "repair"}


def page(results: Path) -> None:
    for name, folder in (("recall", "recall"), ("two-axes", "recall"), ("uneven", "uneven-recall")):
        document = results / f"{name}.md"
        text, contents = document.read_text(), dict[str, str]()
        for place, make_table in TABLES.items():
            if f"<!-- {place} -->" in text:
                rows = lines_of(results / folder, FILES.get(place, place))
                contents[place] = make_table(rows)
        fill(document, contents)


if __name__ == "__main__":
    start(page)
