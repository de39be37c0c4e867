from __future__ import annotations

from pathlib import Path

import pytest
from torchvision import transforms
from torchvision.datasets import ImageFolder

from support.jpegs import image_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("pictures"), 30, side=60)


@pytest.fixture
def pictures(folder: Path) -> ImageFolder:
    """Random crops and flips, as bytes."""
    steps = [transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return ImageFolder(str(folder), transforms.Compose(steps))


@pytest.fixture
def dataset(folder: Path) -> ImageFolder:
    """Nothing random in it: what torch's DataLoader gives is what must come."""
    steps = [transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()]
    return ImageFolder(str(folder), transforms.Compose(steps))
