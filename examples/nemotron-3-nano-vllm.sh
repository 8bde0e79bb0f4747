#!/usr/bin/env bash
# Nemotron-3-Nano (Mamba-2) in vLLM. nemotron-3-nano-vllm.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]"

# Look before you cut
statetrim inspect nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --to 64x100%
statetrim trim nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --to 64x100% --for vllm --text text.jsonl --device-map auto -o OUT --dry-run

# Cut and measure
statetrim trim nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --to 64x100% --for vllm --text text.jsonl --device-map auto -o OUT

# Verify
statetrim verify OUT --baseline nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16 --engine vllm --engine-python vllm-env/bin/python --text test.jsonl -o verification.json

# Serve
vllm serve OUT --mamba-ssm-cache-dtype bfloat16
