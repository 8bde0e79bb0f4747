#!/usr/bin/env bash
# Make an environment that converts checkpoints to GGUF and runs them in llama.cpp: make_llamacpp.sh TARGET [XLLAMACPP_VERSION]
set -euo pipefail
target=${1:?the directory of the new environment}
here=$(cd "$(dirname "$0")" && pwd)

"${PYTHON:-python3}" -m venv "$target"
"$target/bin/pip" install --quiet --upgrade pip
# llama.cpp as a library, built beforehand for CPUs.
"$target/bin/pip" install --quiet "xllamacpp==${2:-2026.10.11549}"
# The same with llama.cpp's quantiser, which xllamacpp leaves out.
"$target/bin/pip" install --quiet cyllama==0.2.18

# The converter is no package: it comes with llama.cpp's sources, which this archive carries.
archive=$(mktemp -d)
trap 'rm -rf "$archive"' EXIT
"$target/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$archive" llama-cpp-python==0.3.36
tar -xzf "$archive"/llama_cpp_python-*.tar.gz -C "$archive"
rm -rf "$target/llama.cpp"
mkdir "$target/llama.cpp"
cd "$archive"/llama_cpp_python-*/vendor/llama.cpp
cp -r LICENSE convert_hf_to_gguf.py conversion gguf-py "$target/llama.cpp"
cp "$here/in_llamacpp/convert_and_quantise.py" "$target/llama.cpp"
# Newer than the converter's own list, which knows no tokenizers of transformers 5.
"$target/bin/pip" install --quiet torch==2.13.0 transformers==5.22.2 sentencepiece "$target/llama.cpp/gguf-py"

"$target/bin/python" "$target/llama.cpp/convert_hf_to_gguf.py" --print-supported-models 2>&1 | grep --quiet Qwen3NextForCausalLM
"$target/bin/python" -c '
from importlib.metadata import version
import xllamacpp
print("llama.cpp is ready: xllamacpp", version("xllamacpp"))'
