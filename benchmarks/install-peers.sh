#!/usr/bin/env bash
# One virtual environment for each peer, as their pins conflict. Peers that need torch share the main environment's
# (a .pth file appends its packages to theirs): saves 5 GB each, and makes all of them run on the same torch.
# A peer that cannot be installed is named, and the benchmark goes on without it.
#   benchmarks/install-peers.sh FOLDER MAIN_VENV [PEER…]
set -uo pipefail

folder=$1 main=$2
shift 2
peers=("$@")
[ ${#peers[@]} -gt 0 ] || peers=(albumentations augrs dali decoders ffcv spdl streaming turboloader webdataset)
shared=$("$main/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || exit 1
mkdir -p "$folder"

make_environment() {  # NAME [shared]
  local own
  "$main/bin/python" -m venv "$folder/$1" || return 1
  own=$("$folder/$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || return 1
  if [ "${2:-}" = shared ]; then printf '%s\n' "$shared" >"$own/shared-with-headrace.pth"; fi
}

install() {  # NAME PIP-ARGUMENTS…
  local name=$1
  shift
  "$folder/$name/bin/python" -m pip install -q "$@"
}

debian() {  # PACKAGE…: only those that are missing
  local missing=() package sudo=()
  for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -q && DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
}

install_albumentations() { make_environment albumentations shared && install albumentations albumentations opencv-python-headless; }
install_augrs() { make_environment augrs shared && install augrs augrs-py opencv-python-headless; }
install_decoders() {  # for decoders.py
  debian libturbojpeg0 ffmpeg && make_environment decoders shared &&
    install decoders opencv-python-headless simplejpeg 'PyTurboJPEG<2' imagecodecs kornia-rs torchcodec
}
install_dali() { make_environment dali && install dali nvidia-dali-cuda120 numpy; }
install_turboloader() { make_environment turboloader && install turboloader turboloader numpy; }
install_spdl() { debian ffmpeg && make_environment spdl shared && install spdl spdl; }  # decodes with the system's FFmpeg
install_streaming() { # for remote.py; Streaming 0.13 uses a lock in forked workers, which newer ones of filelock refuse
  make_environment streaming shared && install streaming litdata mosaicml-streaming webdataset 'filelock<3.20'
}
install_webdataset() { make_environment webdataset shared && install webdataset webdataset; }
install_ffcv() {
  # Only a source release exists; it finds OpenCV and TurboJPEG through pkg-config.
  debian pkg-config libopencv-dev libturbojpeg0-dev &&
    make_environment ffcv shared && install ffcv 'setuptools<81' wheel cython numba opencv-python-headless &&
    install ffcv fastargs assertpy terminaltables pytorch-pfn-extras tqdm &&
    install ffcv --no-build-isolation --no-deps ffcv
}

failed=()
for peer in "${peers[@]}"; do
  if [ -e "$folder/$peer/.done" ]; then continue; fi
  printf 'peer %s: installing into %s\n' "$peer" "$folder/$peer"
  if "install_$peer"; then
    touch "$folder/$peer/.done"
  else
    failed+=("$peer")
  fi
done
if [ ${#failed[@]} -gt 0 ]; then
  printf 'peers that could not be installed, and will be missing from the table: %s\n' "${failed[*]}" >&2
fi
