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

# What an analysis costs beside a bare forward pass (docs/rank-analysis.md).
bench-analyze:
    python experiments/bench_analyze.py

# The pictures and the table of docs/rank-analysis.md, from the reference model in ../shared.
figures:
    python experiments/figures_reference.py
