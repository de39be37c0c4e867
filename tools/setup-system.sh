#!/usr/bin/env bash
# What pip cannot bring: libjpeg-turbo's headers and Python's venv module. Installs with apt-get only what is
# missing, and says what to do where it can't. Run again, it finds everything and does nothing.
#   tools/setup-system.sh [python3]
set -euo pipefail

python=${1:-python3}
missing=()

die() {
  printf 'setup: %s\n' "$1" >&2
  exit 1
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
printf '#include <cstddef>\n#include <cstdio>\n#include <jpeglib.h>\n' |
  "$compiler" -x c++ -fsyntax-only - 2>/dev/null || missing+=(libjpeg-dev)

[ ${#missing[@]} -gt 0 ] || exit 0
printf 'setup: missing from this machine: %s\n' "${missing[*]}"
command -v apt-get >/dev/null ||
  die "no apt-get here: install these packages (or what your system calls them), then run make again: ${missing[*]}"

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || die "not root, and no sudo: have root run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
install=("${as_root[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}")
"${install[@]}" || {
  "${as_root[@]}" apt-get update -q && "${install[@]}"
} || die "apt-get could not install ${missing[*]}: see its message above."
