#!/usr/bin/env bash
# What pip cannot bring: Python's venv module, and the headers of libjpeg-turbo, libpng and libwebp. Installs with
# apt-get only what is missing, and says what to do where it can't. Where libpng or libwebp can't be had, Headrace
# leaves PNG or WebP to Pillow. Run again, it finds everything and does nothing.
#   tools/setup-system.sh [python3]
set -euo pipefail

python=${1:-python3}
missing=()  # what there is no building without
wanted=()   # what Pillow can stand in for

die() {
  printf 'setup: %s\n' "$1" >&2
  exit 1
}

# Ends where something indispensable is missing.
without() {
  [ ${#missing[@]} -eq 0 ] || die "$1"
  printf 'setup: %s\nsetup: built without these, Headrace leaves PNG and WebP to Pillow.\n' "$1" >&2
  exit 0
}
command -v "$python" >/dev/null || die "$python is not on the PATH: install Python 3.10 or newer, or say PYTHON=/path/to/python3."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "$("$python" --version) is too old, Headrace needs 3.10 or newer: say PYTHON=/path/to/python3."

compiler=${CXX:-}
for name in c++ g++ clang++; do
  if [ -z "$compiler" ] && command -v "$name" >/dev/null; then compiler=$name; fi
done
[ -n "$compiler" ] || die "no C++ compiler on the PATH: apt-get install g++, or say CXX=/path/to/compiler."

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  missing+=("$("$python" -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))')")
has_header() {
  printf '#include <cstddef>\n#include <cstdio>\n#include <%s>\n' "$1" | "$compiler" -x c++ -fsyntax-only - 2>/dev/null
}
has_header jpeglib.h || missing+=(libjpeg-dev)
has_header png.h || wanted+=(libpng-dev)
has_header webp/demux.h || wanted+=(libwebp-dev)

packages=("${missing[@]}" "${wanted[@]}")
[ ${#packages[@]} -gt 0 ] || exit 0
printf 'setup: missing from this machine: %s\n' "${packages[*]}"
command -v apt-get >/dev/null ||
  without "no apt-get here: install these packages (or what your system calls them), then run make again: ${packages[*]}"

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || without "not root, and no sudo: have root run: apt-get install ${packages[*]}"
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
install=("${as_root[@]}" apt-get install -y -q --no-install-recommends "${packages[@]}")
"${install[@]}" || {
  "${as_root[@]}" apt-get update -q && "${install[@]}"
} || without "apt-get could not install ${packages[*]}: see its message above."
