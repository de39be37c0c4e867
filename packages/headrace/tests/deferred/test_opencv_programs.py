"""Programs without OpenCV, and with an OpenCV that only the dataset imports."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.jpegs import image_folder
from support.python import run_python

PROGRAM = """
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils import data

import headrace

class Files(data.Dataset):
    def __init__(self, reader):
        self.files, self.reader = sorted(map(str, Path(sys.argv[1]).rglob("*.jpg"))), reader

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        if self.reader == "Pillow":
            return np.array(Image.open(self.files[index]).convert("RGB").resize((20, 20)))
        import cv2

        return cv2.resize(cv2.imread(self.files[index]), (20, 20))

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[3])
    dataset = Files(sys.argv[2])
    theirs = list(data.DataLoader(dataset, batch_size=4, num_workers=1))
    for method in sys.argv[4:]:
        ours = list(headrace.DataLoader(dataset, 4, num_workers=1, multiprocessing_context=method))
        assert len(ours) == 2 and all(map(torch.equal, ours, theirs))
    assert "cv2" not in sys.modules
"""


@pytest.mark.parametrize(
    ("reader", "methods"),
    [
        ("OpenCV", ("fork", "spawn")),
        ("Pillow", ("fork",)),
        pytest.param("Pillow", ("spawn",), marks=pytest.mark.long),
    ],
)
def test_batches_are_those_of_torchs_loader(reader: str, methods: tuple[str, ...], tmp_path: Path) -> None:
    image_folder(tmp_path / "images", 8, side=60)
    broken = tmp_path / "modules"
    broken.mkdir()
    if reader == "Pillow":
        (broken / "cv2.py").write_text("raise ImportError('OpenCV is not installed')\n", encoding="utf-8")
    elif importlib.util.find_spec("cv2") is None:
        pytest.skip("OpenCV isn't installed")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    run_python(tmp_path / "program.py", tmp_path / "images", reader, broken, *methods, check=True)
