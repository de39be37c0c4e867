"""A ConcatDataset of image folders, natively and as torch's loader gives it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import headrace
from support.images import image_folder


def test_batches_of_a_concatenation_equal_those_of_torch(tmp_path: Path) -> None:
    transform = v1.Compose([v1.Resize((20, 24)), v1.ToTensor(), v1.Normalize((0.5,) * 3, (0.2,) * 3)])
    folders = [ImageFolder(image_folder(tmp_path / name, n), transform) for name, n in (("a", 5), ("b", 3))]
    dataset: ConcatDataset[Any] = ConcatDataset([Subset(folders[0], [4, 0, 2]), folders[1]])
    ours = headrace.DataLoader(dataset, 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    assert ours.plan().native is not None
    theirs = DataLoader(dataset, 4, shuffle=True, generator=torch.Generator().manual_seed(1))
    for (images, labels), (same_images, same_labels) in zip(ours, theirs, strict=True):
        assert images.equal(same_images)
        assert labels.equal(same_labels)
