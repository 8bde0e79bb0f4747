#!/usr/bin/env bash
# Build llama-server with coded checkpoints from fresh sources: make_llamacpp_server.sh TARGET
set -euo pipefail
target=${1:?the directory of the sources and the build}
plugin=$(cd "$(dirname "$0")/../../plugins/llamacpp" && pwd)

rm -rf "$target"
mkdir -p "$target"
archive=$(mktemp -d)
trap 'rm -rf "$archive"' EXIT
# The archive carries llama.cpp's sources, the server's included.
"${PYTHON:-python3}" -m pip download --quiet --no-deps --no-binary :all: --dest "$archive" llama-cpp-python==0.3.36
tar -xzf "$archive"/llama_cpp_python-*.tar.gz -C "$archive"
cp -r "$archive"/llama_cpp_python-*/vendor/llama.cpp "$target/llama.cpp"

cp "$plugin"/common/* "$target/llama.cpp/common"
patch --directory="$target/llama.cpp" --strip=1 < "$plugin/llama.cpp.patch"

cmake -S "$target/llama.cpp" -B "$target/build" -DCMAKE_BUILD_TYPE=Release \
    -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
cmake --build "$target/build" --target llama-server --parallel "${JOBS:-2}"
"$target/build/bin/llama-server" --help | grep --quiet ctx-checkpoint-error
echo "llama-server is ready: $target/build/bin/llama-server"
