#!/usr/bin/env bash
# Recovery with FSDP on several nodes. recover-fsdp-nodes.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models,recover]"

# Cut
statetrim trim Qwen/Qwen3.5-27B --to 64x64 --for vllm --text text.jsonl --device-map auto -o SMALL

# Recover
torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id recovery --rdzv-endpoint FIRST_NODE:29500 -m statetrim recover SMALL --teacher Qwen/Qwen3.5-27B --text text.jsonl --tokens 64m --recall 0.25 --batch-size 64 --shard --gradient-checkpointing --micro-batch 2 -o OUT

# Train the control
torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-id control --rdzv-endpoint FIRST_NODE:29500 -m statetrim recover SMALL --teacher Qwen/Qwen3.5-27B --text text.jsonl --tokens 64m --recall 0.25 --batch-size 64 --shard --gradient-checkpointing --micro-batch 2 --control -o CONTROL

# Measure
statetrim evaluate SMALL OUT CONTROL --baseline Qwen/Qwen3.5-27B --tasks text,mqar --text test.jsonl --device-map auto -o scores.json
statetrim report OUT scores.json --baseline Qwen/Qwen3.5-27B -o report

# Verify
statetrim verify OUT --baseline Qwen/Qwen3.5-27B --engine vllm --engine-python vllm-env/bin/python --text test.jsonl -o verification.json

# Serve
vllm serve OUT --gdn-prefill-backend triton
