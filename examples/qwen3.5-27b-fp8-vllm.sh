#!/usr/bin/env bash
# An FP8 release in vLLM. qwen3.5-27b-fp8-vllm.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]"

# Look before you cut
statetrim inspect Qwen/Qwen3.5-27B-FP8 --to 64x64 --memory-gib 40 --kv-dtype fp8
statetrim inspect Qwen/Qwen3.5-27B --to 64x64

# Plan on the 16-bit model
statetrim calibrate Qwen/Qwen3.5-27B --text text.jsonl -o statistics.safetensors
statetrim select Qwen/Qwen3.5-27B --to 64x64 --statistics statistics.safetensors -o plan.json

# Cut the FP8 release
statetrim prune Qwen/Qwen3.5-27B-FP8 plan.json -o OUT

# Measure
statetrim select Qwen/Qwen3.5-27B --to 64x64 --method rand -o random.json
statetrim prune Qwen/Qwen3.5-27B-FP8 random.json -o RANDOM
statetrim evaluate OUT RANDOM --baseline Qwen/Qwen3.5-27B-FP8 --tasks text,mqar --text test.jsonl -o scores.json
statetrim report OUT scores.json --baseline Qwen/Qwen3.5-27B-FP8 -o report

# Verify
statetrim verify OUT --baseline Qwen/Qwen3.5-27B-FP8 --engine vllm --engine-python vllm-env/bin/python --text test.jsonl -o verification.json

# Serve
vllm serve OUT --gdn-prefill-backend triton --kv-cache-dtype fp8 --mamba-ssm-cache-dtype bfloat16
