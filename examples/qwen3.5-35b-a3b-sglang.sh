#!/usr/bin/env bash
# Qwen3.5-35B-A3B in SGLang. qwen3.5-35b-a3b-sglang.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]"

# Look before you cut
statetrim inspect Qwen/Qwen3.5-35B-A3B --to 64x64
statetrim trim Qwen/Qwen3.5-35B-A3B --to 64x64 --for sglang --text text.jsonl -o OUT --dry-run

# Cut and measure
statetrim trim Qwen/Qwen3.5-35B-A3B --to 64x64 --for sglang --text text.jsonl -o OUT

# Verify
statetrim verify OUT --baseline Qwen/Qwen3.5-35B-A3B --engine vllm --engine-python vllm-env/bin/python --text test.jsonl -o verification.json

# Serve
python -m sglang.launch_server --model-path OUT --tp 2 --mamba-ssm-dtype bfloat16 --port 8000
