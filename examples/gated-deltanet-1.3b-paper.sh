#!/usr/bin/env bash
# Gated DeltaNet 1.3B, as in the paper. gated-deltanet-1.3b-paper.md explains each step.
set -euo pipefail

# Install
pip install "statetrim[models,fla,recover,evaluate]"

# Look before you cut
statetrim inspect m-a-p/1.3B-100B-GatedDeltaNet-pure --to 50%x100%

# Cut as the paper does
statetrim calibrate m-a-p/1.3B-100B-GatedDeltaNet-pure --text text.jsonl --for drrqr --recall 0 -o statistics.safetensors
statetrim select m-a-p/1.3B-100B-GatedDeltaNet-pure --method drrqr --to 50%x100% --statistics statistics.safetensors -o plan.json
statetrim prune m-a-p/1.3B-100B-GatedDeltaNet-pure plan.json -o SMALL

# Recover, with the control
statetrim recover SMALL --teacher m-a-p/1.3B-100B-GatedDeltaNet-pure --text text.jsonl --tokens 64m -o OUT
statetrim recover SMALL --teacher m-a-p/1.3B-100B-GatedDeltaNet-pure --text text.jsonl --tokens 64m --control -o CONTROL

# Measure
statetrim evaluate SMALL OUT CONTROL --baseline m-a-p/1.3B-100B-GatedDeltaNet-pure --tasks text,mqar --text test.jsonl -o scores.json
statetrim analyze OUT --baseline m-a-p/1.3B-100B-GatedDeltaNet-pure --text test.jsonl -o ranks.json
statetrim report OUT scores.json ranks.json --baseline m-a-p/1.3B-100B-GatedDeltaNet-pure -o report

# Verify and use
python -c "import sys, fla; from transformers import AutoModelForCausalLM as A; A.from_pretrained(sys.argv[1])" OUT
python -c "import sys, statetrim; statetrim.load(sys.argv[1])" OUT
