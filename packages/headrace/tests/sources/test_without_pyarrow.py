"""What needs no pack works without pyarrow, and what does says what to install."""

from __future__ import annotations

from pathlib import Path

from support.jpegs import image_folder
from support.python import run_python

PROGRAM = """
import sys

sys.modules["pyarrow"] = None  # importing it fails
from headrace import *
import headrace
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

root = sys.argv[1]
loader = headrace.DataLoader(ImageFolder(root, Compose([Resize((8, 8)), ToTensor()])), batch_size=4)
assert loader.plan().native is not None, loader.explain()
print(sum(len(labels) for _, labels in loader), "samples")
print(loader.explain())
for use in (lambda: headrace.PackedDataset(root), lambda: headrace.pack(root, root + ".pack")):
    try:
        use()
    except headrace.ConfigError as error:
        print(error)
"""


def run(root: Path) -> str:
    done = run_python(PROGRAM, root, fresh=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_image_folders_load_and_packs_say_what_to_install(tmp_path: Path) -> None:
    said = run(image_folder(tmp_path / "images", 8))
    assert said.startswith("8 samples\n")
    assert said.count("pip install 'headrace[packs]'") == 2


def test_entry_points_that_cannot_be_read_are_named_in_the_plan(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "images", 8)
    (root / ".headrace-entry-points.arrow").touch()
    said = run(root)
    assert said.startswith("8 samples\n")
    assert "are ignored: Packs and indexes need pyarrow" in " ".join(said.split())
