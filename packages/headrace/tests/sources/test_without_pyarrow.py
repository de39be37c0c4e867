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

for root in sys.argv[1:]:
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


def test_image_folders_load_and_packs_and_indexes_say_what_to_install(tmp_path: Path) -> None:
    plain, indexed = (image_folder(tmp_path / name, 8) for name in ("plain", "indexed"))
    (indexed / ".headrace-entry-points.arrow").touch()
    done = run_python(PROGRAM, plain, indexed, fresh=True)
    assert done.returncode == 0, done.stderr
    without, with_index = done.stdout.split("8 samples\n")[1:]
    assert "are ignored" not in without
    assert "are ignored: Packs and indexes need pyarrow" in " ".join(with_index.split())
    assert with_index.endswith(2 * "Packs and indexes need pyarrow: pip install 'headrace[packs]'.\n")
