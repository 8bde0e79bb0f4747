#!/usr/bin/env bash
# OLMo-Hybrid-7B in vLLM. olmo-hybrid-7b-vllm.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]"

# Look before you cut
statetrim inspect allenai/Olmo-Hybrid-7B --to 48x96
statetrim trim allenai/Olmo-Hybrid-7B --to 48x96 --for vllm --text text.jsonl -o OUT --dry-run

# Cut and measure
statetrim trim allenai/Olmo-Hybrid-7B --to 48x96 --for vllm --text text.jsonl -o OUT

# Verify
statetrim verify OUT --baseline allenai/Olmo-Hybrid-7B --engine vllm --engine-python vllm-env/bin/python --text test.jsonl -o verification.json

# Serve
vllm serve OUT
