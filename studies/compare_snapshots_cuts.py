"""A cut, a code, or both: losses at equal bytes of a stored state, on one model.

    python studies/compare_snapshots_cuts.py MODEL --text train.jsonl --test wiki.test.txt \\
        --work FOLDER --results results/snapshots.jsonl --seed 0

Cuts are made as in `compare_precision`, refitted and without recovery. The states of each are coded
as in `compare_snapshots`, which measures the original. Losses are against the original without a
copy, shares are of its float32 bytes.
"""

from __future__ import annotations

import argparse
from functools import partial

import statetrim as st
from compare_precision import SHAPES, make_cut
from compare_snapshots import DEFAULT, PAIRS, Row, Study, change, study_options
from statetrim.snapshots.snapshot import Code

PLAIN = "float32"
CODES: tuple[tuple[Code, str], ...] = (
    (PLAIN, "none"), ("int8", "none"), ("int4", "none"),
    (0.05, "none"), (0.1, "none"), (0.05, DEFAULT), (0.1, DEFAULT),
)  # fmt: skip


def loss(original: Study, cut: Study, code: Code, metric: str) -> Row:
    """Bytes of a cut's coded states, and what cut and code lose together."""
    kept, metrics = None if code == PLAIN else code, cut.grams.metrics(metric)
    exact, exact_recall = original.exact()
    read, copies = cut.read_text(kept, metrics)
    numbers = [
        study.live.checkpoint.geometry.num_v_heads * sum(k * v for k, v in shapes.values())
        for study in (original, cut)
        for shapes in [study.live.checkpoint.geometry.shapes]
    ]
    share = sum(x.share for x in copies) / len(copies) if copies else 1.0
    return {
        "of": original.name,
        "share": share * numbers[1] / numbers[0],
        **cut.text_changes(exact, read),
        f"recall {PAIRS}": change(exact_recall, cut.recall(kept, metrics, PAIRS)),
    }


def main() -> None:
    options = study_options(__doc__)
    model = st.open(options.model)
    original = Study(options)
    for shape in [name for name in SHAPES if name != "full"]:
        path = make_cut(model, shape, options.text, options.work).path
        changed = {"model": path, "name": path.name}
        cut = Study(argparse.Namespace(**vars(options) | changed))
        for code, metric in CODES:
            cut.measure("cut", code, metric, partial(loss, original, cut, code, metric))


if __name__ == "__main__":
    main()
