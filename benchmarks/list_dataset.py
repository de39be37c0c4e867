"""The dataset that most rows of `pipeline_rows.py` share, and the usual ends of a transform."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
END = (v1.ToTensor(), v1.Normalize(MEAN, STD))
END_V2 = (v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))

Make = Callable[[Path], Dataset[Any]]


def listed(folder: Path) -> list[tuple[str, int]]:
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(str(path), label) for label, each in enumerate(classes) for path in sorted(each.iterdir())]


class ListDataset(Dataset[Any]):
    """Paths and labels in a list, as from a CSV file; the most frequent dataset of one's own."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.samples = listed(folder)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), label
