#!/usr/bin/env bash
# Builds the native tests that need no codec library for AArch64 and runs them under qemu, to test the NEON kernels on
# x86-64 machines. Skips them with a message if the cross compiler or qemu is missing
# (Debian: apt-get install g++-aarch64-linux-gnu qemu-user-static).
#
#     tools/neon-test.sh BUILD_FOLDER
set -euo pipefail
build=$1
cd "$(dirname "$0")/.."

compiler=aarch64-linux-gnu-g++
emulator=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
if ! command -v "$compiler" >/dev/null || [ -z "$emulator" ]; then
  echo "neon-test: $compiler or qemu-aarch64 is not installed: the NEON kernels are NOT tested"
  exit 0
fi

mkdir -p "$build"
rm -f "$build"/*
flags=(-std=c++17 -O2 -Wall -Wextra -Wshadow -Werror -ffp-contract=off -pthread -Ipackages/headrace/native/include -Ipackages/headrace/native/src)
grep -rLE '<jpeglib.h>|<jconfig.h>|<libdeflate.h>|<webp/|"libjpeg_' packages/headrace/native/src --include='*.cpp' | grep -vE '_avx(2|512)\.cpp$' |
  xargs -P "$(nproc)" -I{} sh -c '"$@" -c "{}" -o "$0/$(echo "{}" | tr / _).o"' "$build" "$compiler" "${flags[@]}"
ar rcs "$build/headrace.a" "$build"/*.o

# Nor those of the C interface, which the library of this build leaves out: it names the codec libraries.
for test in $(grep -LE '"(jpegs|pool_world).h"|\bhr_\w+\(' packages/headrace/native/tests/*.cpp); do
  name=$(basename "$test" .cpp)
  "$compiler" "${flags[@]}" -static "$test" "$build/headrace.a" -o "$build/$name"
  "$emulator" "$build/$name"
done
