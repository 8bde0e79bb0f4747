#!/usr/bin/env bash
# Make an environment in which the Triton kernels of vLLM, SGLang and fla compile or are interpreted without a GPU:
# make_kernels.sh TARGET [VLLM_VERSION [SGLANG_VERSION]]
set -euo pipefail
target=${1:?the directory of the new environment}
vllm=${2:-0.33.0}
sglang=${3:-0.5.23}

"${PYTHON:-python3}" -m venv "$target"
"$target/bin/pip" install --quiet --upgrade pip
# Triton 3.9 has no block pointers any more, which SGLang's chunk kernels need.
"$target/bin/pip" install --quiet torch==2.13.0 triton==3.8.0 numpy transformers==5.19.0 \
    aiohttp cachetools cbor2 cloudpickle einops ipython msgspec openai-harmony orjson pillow psutil pybase64 pydantic \
    python-json-logger pyzmq regex requests setuptools starlette
# fla, and what statetrim and its tests' helpers need (`just interpret-kernels`, `just check-parts`).
"$target/bin/pip" install --quiet flash-linear-attention==0.6.0 datasets lazy_loader peft pytest typer accelerate
# What their cache arithmetic imports besides (tools/engines/in_vllm, sglang_capacity.py).
"$target/bin/pip" install --quiet openai uvloop py-cpuinfo prometheus_client xgrammar fastapi partial_json_parser \
    llguidance tqdm compressed_tensors dill
# Only their Python files matter here: none of their compiled parts is run.
"$target/bin/pip" install --quiet --no-deps "vllm==$vllm" "sglang==$sglang"
"$target/bin/python" -c 'import torch, triton; print("kernels compile with triton", triton.__version__)'
