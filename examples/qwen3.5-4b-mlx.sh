#!/usr/bin/env bash
# Qwen3.5-4B on a Mac with MLX-LM. qwen3.5-4b-mlx.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]" mlx-lm

# Look before you cut
statetrim inspect Qwen/Qwen3.5-4B --to 64x64 --engine mlx --memory-gib 8
statetrim trim Qwen/Qwen3.5-4B --to 64x64 --for mlx --text text.jsonl -o OUT --dry-run

# Cut and measure
statetrim trim Qwen/Qwen3.5-4B --to 64x64 --for mlx --text text.jsonl -o OUT

# Verify
statetrim verify OUT --baseline Qwen/Qwen3.5-4B --engine mlx --engine-python python3 --text test.jsonl -o verification.json

# Serve
mlx_lm.server --model OUT --port 8000
