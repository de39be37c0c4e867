"""Two small sets of real, labelled images, as class folders in train and val: scikit-learn's handwritten
digits written as JPEGs, and the stamps of Debian's tuxpaint, PNGs of which some are transparent.

    python benchmarks/learning_sets.py digits FOLDER        needs scikit-learn
    python benchmarks/learning_sets.py stamps FOLDER        needs apt-get and dpkg: 161 MB are downloaded
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

HOLD_OUT = 5  # every fifth image of a class
DIGIT_SIDE = 32
# A class needs some images to be learned from.
LEAST_STAMPS = 30
PACKAGE = "tuxpaint-stamps-default"


def part(number: int) -> str:
    """Returns the part that image `number` of its class goes to."""
    return "val" if number % HOLD_OUT == 0 else "train"


def digits(folder: Path) -> None:
    """1,797 digits of 8×8 grey levels (0 to 16), enlarged to 32×32 bicubically, as JPEGs of quality 95."""
    from sklearn.datasets import load_digits

    found = load_digits()
    seen = [0] * 10
    for pixels, label in zip(found.images, found.target, strict=True):
        image = Image.fromarray((pixels * (255 / 16)).astype("uint8")).resize(
            (DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.BICUBIC
        )
        place = folder / part(seen[label]) / str(label)
        place.mkdir(parents=True, exist_ok=True)
        image.save(place / f"{seen[label]:04}.jpg", quality=95)
        seen[label] += 1


def stamps(folder: Path) -> None:
    """The files as they are, by the folder that they are in; classes of fewer than 30 are left out."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["apt-get", "download", PACKAGE], cwd=scratch, check=True)
        (archive,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg", "-x", str(archive), scratch], check=True)
        root = Path(scratch) / "usr/share/tuxpaint/stamps"
        for kind in sorted(path for path in root.iterdir() if path.is_dir()):
            files = sorted(kind.rglob("*.png"))
            if len(files) < LEAST_STAMPS:
                continue
            for number, file in enumerate(files):
                place = folder / part(number) / kind.name
                place.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place / f"{number:04}-{file.name}")


SETS = {"digits": digits, "stamps": stamps}


def make(name: str, folder: Path) -> Path:
    """`folder`, made first where it isn't there."""
    if not folder.exists():
        temporary = folder.with_name(folder.name + ".partial")
        shutil.rmtree(temporary, ignore_errors=True)
        SETS[name](temporary)
        temporary.rename(folder)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=SETS)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    made = make(arguments.name, arguments.folder)
    counts = {p: sum(1 for _ in (made / p).rglob("*.*")) for p in ("train", "val")}
    sys.stdout.write(f"{made}: {counts}\n")
