# `just check` is what a contributor runs before a commit; `.ci/run` is the same in a fresh environment.

check: lint types test

lint:
    ruff format --check .
    ruff check .

types:
    mypy

test:
    pytest -n 2 --dist loadfile

# Time and memory of a prune beside cp, on a synthetic 20 GB checkpoint below DIRECTORY (docs/scale.md).
bench-prune DIRECTORY:
    python experiments/bench_prune.py {{DIRECTORY}}

# Cost of calibration beside the bare model, its memory, and the time of selection (docs/calibration-cost.md).
bench-calibrate:
    OMP_NUM_THREADS=1 python experiments/bench_calibrate.py

# Every method on MODEL: NLL, KL and recall after the cut; goes on where it stopped (docs/methods.md).
compare-methods MODEL TEXT TEST *OPTIONS:
    python experiments/compare_methods.py {{MODEL}} --text {{TEXT}} --test {{TEST}} --results docs/methods.jsonl {{OPTIONS}}
    python experiments/plot_methods.py docs/methods.jsonl docs/methods.md
