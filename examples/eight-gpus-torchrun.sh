#!/usr/bin/env bash
# Eight GPUs with torchrun and SLURM. eight-gpus-torchrun.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]"

# Calibrate on eight GPUs
torchrun --standalone --nproc-per-node 8 -m statetrim calibrate Qwen/Qwen3.5-27B --text text.jsonl --tokens 2m -o statistics.safetensors

# Select and cut
statetrim select Qwen/Qwen3.5-27B --to 64x64 --statistics statistics.safetensors -o plan.json
statetrim prune Qwen/Qwen3.5-27B plan.json -o SMALL

# Refit
statetrim calibrate SMALL --original Qwen/Qwen3.5-27B --text text.jsonl --tokens 64k --device-map auto -o fit.safetensors
statetrim refit SMALL --statistics fit.safetensors -o OUT

# Measure
statetrim select Qwen/Qwen3.5-27B --to 64x64 --method rand -o random.json
statetrim prune Qwen/Qwen3.5-27B random.json -o RANDOM
torchrun --standalone --nproc-per-node 8 -m statetrim evaluate OUT RANDOM --baseline Qwen/Qwen3.5-27B --tasks text,mqar --text test.jsonl -o scores.json
statetrim report OUT scores.json --baseline Qwen/Qwen3.5-27B -o report

# Verify
statetrim verify OUT --baseline Qwen/Qwen3.5-27B --engine vllm --engine-python vllm-env/bin/python --text test.jsonl -o verification.json

# Serve
vllm serve OUT --gdn-prefill-backend triton --tensor-parallel-size 8
