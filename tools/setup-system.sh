#!/usr/bin/env bash
# Installs what pip cannot: Python's venv module, and the headers of libjpeg-turbo, libdeflate and libwebp. Uses
# apt-get for what is missing only, and prints what to do if that fails. Without libdeflate or libwebp, Headrace
# leaves PNG or WebP to Pillow. Running it again does nothing.
#   tools/setup-system.sh [python3]
set -euo pipefail

python=${1:-python3}
missing=()  # required
wanted=()   # optional: Pillow decodes these formats instead

die() {
  printf 'setup: %s\n' "$1" >&2
  exit 1
}

# Fails if something required is missing, otherwise prints a note and succeeds.
without() {
  [ ${#missing[@]} -eq 0 ] || die "$1"
  printf 'setup: %s\nsetup: without these packages, Pillow decodes PNG and WebP files.\n' "$1" >&2
  exit 0
}
command -v "$python" >/dev/null || die "$python is not on the PATH: install Python 3.10 or newer, or pass PYTHON=/path/to/python3."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  die "$("$python" --version) is too old, Headrace needs 3.10 or newer: pass PYTHON=/path/to/python3."

compiler=${CXX:-}
for name in c++ g++ clang++; do
  if [ -z "$compiler" ] && command -v "$name" >/dev/null; then compiler=$name; fi
done
[ -n "$compiler" ] || die "no C++ compiler on the PATH: apt-get install g++, or pass CXX=/path/to/compiler."

"$python" -c 'import ensurepip, venv' 2>/dev/null ||
  missing+=("$("$python" -c 'import sys; print("python{}.{}-venv".format(*sys.version_info))')")
has_header() {
  printf '#include <cstddef>\n#include <cstdio>\n#include <%s>\n' "$1" | "$compiler" -x c++ -fsyntax-only - 2>/dev/null
}
has_header jpeglib.h || missing+=(libjpeg-dev)
has_header libdeflate.h || wanted+=(libdeflate-dev)
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
