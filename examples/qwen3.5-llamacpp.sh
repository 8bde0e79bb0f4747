#!/usr/bin/env bash
# Qwen3.5 in llama.cpp. qwen3.5-llamacpp.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models]"

# Look before you cut
statetrim inspect Qwen/Qwen3.5-27B --to 64x64 --engine llamacpp --memory-gib 16
statetrim trim Qwen/Qwen3.5-27B --to 64x64 --for llamacpp --text text.jsonl --device-map auto -o OUT --dry-run

# Cut and measure
statetrim trim Qwen/Qwen3.5-27B --to 64x64 --for llamacpp --text text.jsonl --device-map auto -o OUT

# Verify
statetrim verify OUT --baseline Qwen/Qwen3.5-27B --engine llamacpp --engine-python llamacpp-env/bin/python --text test.jsonl -o verification.json

# Convert and serve
llamacpp-env/bin/python llamacpp-env/llama.cpp/convert_hf_to_gguf.py OUT --outfile model.gguf
llama-server -m model.gguf -c 32768 --parallel 8 --port 8000
