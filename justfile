# `just check` is what a contributor runs before a commit; `.ci/run` is the same in a fresh environment.

check: lint types test

lint:
    ruff format --check .
    ruff check .

types:
    mypy

test:
    pytest -n 2 --dist loadfile

# Pre-train a small model from scratch, for example: just train-tiny delta_net OUT --preset fixture
train-tiny kind out *options:
    python experiments/train_tiny.py {{kind}} {{out}} {{options}}
