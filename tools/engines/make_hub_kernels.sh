#!/usr/bin/env bash
# Make an environment in which transformers takes its kernels through the `kernels` package:
# make_hub_kernels.sh TARGET [KERNELS_VERSION]
set -euo pipefail
target=${1:?the directory of the new environment}
kernels=${2:-0.17.2}

"${PYTHON:-python3}" -m venv "$target"
"$target/bin/pip" install --quiet --upgrade pip
"$target/bin/pip" install --quiet torch==2.13.0
"$target/bin/pip" install --quiet --editable "$(dirname "$0")/../..[models]" "kernels==$kernels"
"$target/bin/python" -c 'from transformers.utils import is_kernels_available as k; assert k(); print("kernels are taken")'
