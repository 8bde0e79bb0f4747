#!/usr/bin/env bash
# Make an environment with MLX-LM, which runs on Linux CPUs too: make_mlx.sh TARGET [VERSION]
set -euo pipefail
target=${1:?the directory of the new environment}

"${PYTHON:-python3}" -m venv "$target"
"$target/bin/pip" install --quiet --upgrade pip
"$target/bin/pip" install --quiet "mlx-lm==${2:-0.32.2}" "mlx[cpu]"
"$target/bin/python" -c '
import mlx.core as mx
from mlx_lm import load
assert mx.sum(mx.ones(3)).item() == 3
print("MLX-LM is ready")'
