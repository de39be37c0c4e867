#!/usr/bin/env bash
# Downloads the AArch64 headers and libraries of the codecs (libjpeg-turbo, libdeflate, libwebp) into FOLDER, from the Debian
# archive that this machine uses. Needs neither root rights nor the arm64 architecture in dpkg: apt gets a state of its own.
#   tools/aarch64-sysroot.sh FOLDER
set -euo pipefail
folder=$(realpath -m "$1")
[ ! -e "$folder/.done" ] || exit 0

if ! command -v aarch64-linux-gnu-g++ >/dev/null; then
  echo 'aarch64-sysroot: the cross compiler is missing: apt-get install g++-aarch64-linux-gnu' >&2
  exit 1
fi
rm -rf "$folder"
mkdir -p "$folder/apt/lists/partial" "$folder/apt/archives/partial"
: >"$folder/apt/status"
apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1
  -o Dir::State="$folder/apt" -o Dir::State::lists="$folder/apt/lists" -o Dir::State::status="$folder/apt/status"
  -o Dir::Cache="$folder/apt" -o Dir::Cache::archives="$folder/apt/archives")
"${apt[@]}" update
"${apt[@]}" install -y --download-only --no-install-recommends libjpeg-dev libdeflate-dev libwebp-dev
# Only the codecs: the C library comes with the cross compiler.
shopt -s nullglob
for package in "$folder"/apt/archives/{libdeflate,libjpeg,libsharpyuv,libwebp}*.deb; do
  dpkg-deb -x "$package" "$folder"
done
rm -rf "$folder/apt"
touch "$folder/.done"
