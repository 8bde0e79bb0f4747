# `just check` is what a contributor runs before a commit; `.ci/run` is the same in a fresh environment.

check: lint types test

lint:
    ruff format --check .
    ruff check .

types:
    mypy

test:
    pytest -n 2 --dist loadfile

# Calibrate, select, prune, evaluate and plot: one table for a model (docs/evaluation.md).
evaluate-reference MODEL DATA OUT:
    python experiments/evaluate_reference.py {{MODEL}} {{DATA}} {{OUT}}

# Time and memory of a prune beside cp, on a synthetic 20 GB checkpoint below DIRECTORY (docs/scale.md).
bench-prune DIRECTORY:
    python experiments/bench_prune.py {{DIRECTORY}}
