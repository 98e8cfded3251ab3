#!/usr/bin/env bash
# Print the C++ flags without which the compiler here cannot build llama.cpp for the processor here; mostly nothing.
#   usage: CXXFLAGS="$CXXFLAGS $(tools/compiler_flags.sh)" make ...
# GCC before 12.4 and 13.3 declares to its optimiser that loading an AMX tile configuration reads 8 bytes, where it reads 64.
# The stores to the others are then dropped as dead, and every product with Q8_0 or Q4_0 weights ends in a general
# protection fault. Keeping the stores costs nothing that can be measured.
set -euo pipefail
grep -qsw amx_tile /proc/cpuinfo || exit 0
compiler=${CXX:-c++}
command -v "$compiler" > /dev/null || exit 0
if echo '#include <immintrin.h>' | "$compiler" -x c++ -E -mamx-tile - 2> /dev/null \
  | grep -A4 '_tile_loadconfig' | grep -qE '\*\(\(const void \*\*\) *__config\)'; then
  echo '-fno-tree-dse -fno-dse'
fi
