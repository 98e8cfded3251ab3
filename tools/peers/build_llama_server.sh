#!/usr/bin/env bash
# Build llama-server from the llama.cpp sources inside the pinned llama-cpp-python sdist, with the options that our own
# engine is built with, so that a comparison compares servers and not engines.
#   usage: tools/peers/build_llama_server.sh [OUT_DIR]     (default .peers; about 5 minutes on 2 cores, once)
# Needs cmake, ninja and a C++ compiler; uses ccache if it is there.
set -euo pipefail
cd "$(dirname "$0")/../.."
flags=$(tools/compiler_flags.sh)
python=$([ -x .venv/bin/python ] && echo "$PWD/.venv/bin/python" || echo python3)
lock=$PWD/requirements.lock
version=$(sed -n 's/^llama-cpp-python==\([^ ]*\).*/\1/p' "$lock")
mkdir -p "${1:-.peers}"
cd "${1:-.peers}"
server=$PWD/llama_cpp-$version/bin/llama-server
if [ -x "$server" ]; then
  echo "$server"
  exit
fi

source=llama_cpp_python-$version
if [ ! -d "$source" ]; then
  # The one entry of the lock, hashes included, so that the peer is built from the very file that we build from.
  awk '/^llama-cpp-python==/ {on = 1} on {print} on && !/\\$/ {exit}' "$lock" > engine.lock
  "$python" -m pip download --quiet --no-deps --no-binary :all: --require-hashes -r engine.lock
  tar xzf "$source.tar.gz"
fi

options=(-DCMAKE_BUILD_TYPE=Release -DGGML_RPC=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
  -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF)
# As for our engine, for example -DGGML_CUDA=on.
read -ra more <<< "${CMAKE_ARGS:-}"
options+=("${more[@]}")
if command -v ccache > /dev/null; then
  options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
CXXFLAGS="${CXXFLAGS:-} $flags" cmake -S "$source/vendor/llama.cpp" -B "llama_cpp-$version" -G Ninja "${options[@]}" \
  > "llama_cpp-$version.log"
cmake --build "llama_cpp-$version" --target llama-server >> "llama_cpp-$version.log" || {
  tail -n 30 "llama_cpp-$version.log" >&2
  exit 1
}
echo "$server"
