#!/usr/bin/env bash
# Qwen3-Next-80B in vLLM, widths by layer in parts. qwen3-next-80b-by-layer-vllm.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]"

# Find the layers that carry recall
statetrim analyze Qwen/Qwen3-Next-80B-A3B-Instruct --sensitivity --layerwise --text text.jsonl -o sensitivity.json

# Look before you cut
statetrim inspect Qwen/Qwen3-Next-80B-A3B-Instruct --to 0=128x128,others=64x64
statetrim trim Qwen/Qwen3-Next-80B-A3B-Instruct --to 0=128x128,others=64x64 --text text.jsonl --layerwise -o OUT --dry-run

# Cut and measure
statetrim trim Qwen/Qwen3-Next-80B-A3B-Instruct --to 0=128x128,others=64x64 --text text.jsonl --layerwise -o OUT

# Install the plugin
pip install ./plugins/vllm

# Verify
statetrim verify OUT --baseline Qwen/Qwen3-Next-80B-A3B-Instruct --engine vllm --engine-python vllm-env/bin/python --text test.jsonl -o verification.json

# Serve
vllm serve OUT --tensor-parallel-size 2
