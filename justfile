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

# Peak memory of layerwise calibration on a synthetic 6 GB checkpoint below DIRECTORY (docs/scale.md).
bench-layerwise DIRECTORY TOKENIZER TEXT:
    python experiments/bench_layerwise.py {{DIRECTORY}} {{TOKENIZER}} {{TEXT}}

# Pre-train a small model from scratch, for example: just train-tiny delta_net OUT --preset fixture
train-tiny kind out *options:
    python experiments/train_tiny.py {{kind}} {{out}} {{options}}

# What an analysis costs beside a bare forward pass (docs/rank-analysis.md).
bench-analyze:
    python experiments/bench_analyze.py

# The pictures and the table of docs/rank-analysis.md, from the reference model in ../shared.
figures:
    python experiments/figures_reference.py

# Cost of calibration beside the bare model, its memory, and the time of selection (docs/calibration-cost.md).
bench-calibrate:
    OMP_NUM_THREADS=1 python experiments/bench_calibrate.py

# What recovery brings back, table and picture; goes on where it stopped (docs/recovery.md).
recover-reference MODELS TEXT TEST WORK *OPTIONS:
    python experiments/recover_reference.py {{MODELS}}/tiny-delta_net --text {{TEXT}} --test {{TEST}} --work {{WORK}} {{OPTIONS}}
    python experiments/recover_reference.py {{MODELS}}/tiny-gated_deltanet --text {{TEXT}} --test {{TEST}} --work {{WORK}} --methods drrqr grad --keep 0.5 {{OPTIONS}}
    python experiments/recover_reference.py {{MODELS}}/tiny-delta_net --text {{TEXT}} --test {{TEST}} --work {{WORK}} --data half --methods grad --keep 0.5 {{OPTIONS}}
    python experiments/recover_reference.py {{MODELS}}/tiny-delta_net --text {{TEXT}} --test {{TEST}} --work {{WORK}} --tokens 196608 --methods grad --keep 0.5 {{OPTIONS}}
    python experiments/plot_recovery.py docs/recovery.jsonl docs/recovery.md

# A step of recovery beside bare forward and backward passes (docs/recovery.md).
bench-recover MODEL TEXT:
    OMP_NUM_THREADS=1 python experiments/bench_recover.py {{MODEL}} --text {{TEXT}}

# Every method on MODEL: NLL, KL and recall after the cut; goes on where it stopped (docs/methods.md).
compare-methods MODEL TEXT TEST *OPTIONS:
    python experiments/compare_methods.py {{MODEL}} --text {{TEXT}} --test {{TEST}} --results docs/methods.jsonl {{OPTIONS}}
    python experiments/plot_methods.py docs/methods.jsonl docs/methods.md
