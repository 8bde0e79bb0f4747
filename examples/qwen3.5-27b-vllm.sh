#!/usr/bin/env bash
# Qwen3.5-27B in vLLM. qwen3.5-27b-vllm.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]"

# Look before you cut
statetrim inspect Qwen/Qwen3.5-27B --to 64x64
statetrim trim Qwen/Qwen3.5-27B --to 64x64 --for vllm --text text.jsonl --device-map auto -o OUT --dry-run

# Cut and measure
statetrim trim Qwen/Qwen3.5-27B --to 64x64 --for vllm --text text.jsonl --device-map auto -o OUT

# Verify
statetrim verify OUT --baseline Qwen/Qwen3.5-27B --engine vllm --engine-python vllm-env/bin/python --text test.jsonl -o verification.json

# Serve
vllm serve OUT --gdn-prefill-backend triton --mamba-ssm-cache-dtype bfloat16
