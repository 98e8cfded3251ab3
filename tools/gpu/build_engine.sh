#!/usr/bin/env bash
# Build the engine for NVIDIA GPUs, with or without a GPU in the building machine.
#   usage: tools/gpu/build_engine.sh [--arch LIST] [--out DIR] [--dry-run]
#     --arch LIST   CUDA architectures, such as 90 (H100, H200) or "86;89"; default: those of the GPUs here, else 90
#     --out DIR     make an archive to carry to another machine instead of installing into .venv
#     --dry-run     say what would be done, and do nothing
# Needs nvcc (CUDA 12 or 13), cmake, ninja and a C++ compiler. About 25 minutes on 2 cores for one architecture.
set -euo pipefail
cd "$(dirname "$0")/../.."

arch='' out='' dry=''
while [ $# -gt 0 ]; do
  case $1 in
    --arch) arch=${2:?--arch needs a list}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --dry-run) dry=1; shift ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done

# run COMMAND...: do it, or only say it
run() {
  if [ -n "$dry" ]; then printf 'would run:'; printf ' %q' "$@"; echo; else "$@"; fi
}

fail() { echo "build_engine: $*" >&2; exit 1; }

nvcc=$(command -v nvcc || true)
[ -n "$nvcc" ] || { [ -x /usr/local/cuda/bin/nvcc ] && nvcc=/usr/local/cuda/bin/nvcc; } || true
if [ -z "$nvcc" ]; then
  [ -n "$dry" ] || fail 'there is no nvcc; install the CUDA toolkit'
  nvcc=/usr/local/cuda/bin/nvcc
  echo "there is no nvcc here; a real run would end now"
fi
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc" || echo "$nvcc")")")

python=python3
[ -x .venv/bin/python ] && python=$PWD/.venv/bin/python
version=$(sed -n 's/^llama-cpp-python==\([^ ]*\).*/\1/p' requirements.lock)

# With a GPU here its own architecture is enough, and the build is five times shorter than for all of them.
native=on
if [ -z "$arch" ]; then
  arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | tr -d . | sort -u | paste -sd ';' || true)
  arch=${arch:-90}
fi
# An archive runs on another processor than this one: name what every server CPU of the last years has.
[ -z "$out" ] || native=off
cmake_args="-DGGML_RPC=on -DGGML_CUDA=on -DGGML_NATIVE=$native -DCMAKE_CUDA_ARCHITECTURES=$arch"
cmake_args="$cmake_args -DCMAKE_CUDA_COMPILER=$nvcc"
link_folders=''
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The toolkit of a slim image may lack cuBLAS, which its own Python package has: headers and libraries, at a folder of ours.
if ! [ -e "$toolkit/include/cublas_v2.h" ]; then
  major=$("$nvcc" --version 2> /dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p' || true)
  package=nvidia-cublas
  [ "${major:-13}" -ge 13 ] || package=nvidia-cublas-cu$major
  echo "cuBLAS comes from the package $package"
  run "$python" -m pip download --quiet --no-deps --dest "$work" "$package"
  if [ -z "$dry" ]; then
    "$python" -m zipfile -e "$work"/nvidia_cublas*.whl "$work/cublas"
    found=$(find "$work/cublas" -name cublas_v2.h -print -quit)
    [ -n "$found" ] || fail "the package $package has no headers"
    cublas=$(dirname "$(dirname "$found")")
    for name in cublas cublasLt; do
      library=$(find "$cublas/lib" -name "lib$name.so.*" -print -quit)
      ln -sf "$(basename "$library")" "$cublas/lib/lib$name.so"
    done
    export CPATH="$cublas/include${CPATH:+:$CPATH}" CMAKE_INCLUDE_PATH="$cublas/include"
    link_folders=$cublas/lib
  fi
fi

# Without a driver there is no libcuda to link against. A library with the same functions does; the driver's own, which
# has the same name, is used when the engine runs.
if ! ldconfig -p 2> /dev/null | grep -q 'libcuda\.so\.1' && ! [ -e "$toolkit/lib64/stubs/libcuda.so" ]; then
  echo "no driver here: libcuda is only linked against"
  run mkdir -p "$work/driver"
  functions='cuInit cuGetErrorString cuDeviceGet cuDeviceGetAttribute cuMemCreate cuMemRelease cuMemMap cuMemUnmap
    cuMemSetAccess cuMemAddressReserve cuMemAddressFree cuMemGetAllocationGranularity'
  if [ -z "$dry" ]; then
    for name in $functions; do echo "int $name(void) { return 0; }"; done > "$work/driver/libcuda.c"
  fi
  run cc -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$work/driver/libcuda.so" "$work/driver/libcuda.c"
  link_folders=${link_folders:+$link_folders:}$work/driver
fi
# CMake looks into the first, the linker into the second.
[ -z "$link_folders" ] || export CMAKE_LIBRARY_PATH=$link_folders LIBRARY_PATH="$link_folders${LIBRARY_PATH:+:$LIBRARY_PATH}"

echo "engine: llama-cpp-python $version, $cmake_args"
flags=$(tools/compiler_flags.sh)
export CMAKE_ARGS="$cmake_args -DCMAKE_PROJECT_llama_cpp_INCLUDE='$PWD/tools/engine.cmake'" CXXFLAGS="${CXXFLAGS:-} $flags"
# The entry of the lock with its hashes: the same source as every other build.
awk '/^llama-cpp-python==/ {on = 1} on {print} on && !/\\$/ {exit}' requirements.lock > "$work/engine.lock"
pip_options=(--no-deps --no-cache-dir --require-hashes --no-binary llama-cpp-python -r "$work/engine.lock")
if [ -z "$out" ]; then
  run "$python" -m pip install --force-reinstall "${pip_options[@]}"
  run "$python" -m tools.check_engine
  # So that the next version is built with the same flags.
  run "$python" -m tools.setup --built="$cmake_args"
  exit
fi

run "$python" -m pip wheel --wheel-dir "$work" "${pip_options[@]}"
run mkdir -p "$out" "$work/engine"
if [ -n "$dry" ]; then
  echo "would pack one copy of each library into $out/engine-cuda.tar.xz"
  exit
fi
"$python" -m zipfile -e "$work"/llama_cpp_python-*.whl "$work/engine"
cd "$work/engine"
# The second copies in lib/ are never loaded. And a wheel knows no links: of the three names of a library one stays a
# file.
rm -rf bin include share lib
for whole in llama_cpp/lib/*.so.*.*.*; do
  for shorter in "${whole%.*.*}" "${whole%.so.*}.so"; do
    ln -sf "$(basename "$whole")" "$shorter"
  done
done
cd - > /dev/null
tar -C "$work/engine" -cJf "$out/engine-cuda.tar.xz" .
ls -l "$out/engine-cuda.tar.xz"
