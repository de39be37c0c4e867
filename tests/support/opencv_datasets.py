"""Datasets that read their files with OpenCV and augment them with albumentations."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # it asks PyPI otherwise

import albumentations as A  # noqa: N812  (its documentation's own name for it)
import cv2
import numpy as np
from albumentations.pytorch import ToTensorV2
from torch.utils import data

END = [A.Normalize(), ToTensorV2()]
# Some arguments have other names in AlbumentationsX.
IS_X = "angle_range" in inspect.signature(A.Rotate).parameters
TURNED: dict[str, Any] = {"angle_range": (-30, 30)} if IS_X else {"limit": 30}
BLURRED: dict[str, Any] = {"blur_range": (3, 5)} if IS_X else {"blur_limit": 5}

# Pipelines as they are written in public training scripts.
PIPELINES: dict[str, list[Any]] = {
    "crop": [A.RandomResizedCrop(size=(64, 64)), A.HorizontalFlip(p=0.5), *END],
    "resize and jitter": [
        *(A.Resize(72, 72), A.HorizontalFlip(p=0.5), A.VerticalFlip(p=0.5), A.Rotate(**TURNED, p=0.8)),
        *(A.RandomBrightnessContrast(p=0.8), A.RandomGamma(p=0.5), *END),
    ],
    "one of blurs": [
        A.Resize(64, 64),
        A.OneOf([A.GaussianBlur(), A.MedianBlur(**BLURRED), A.MotionBlur(), A.Blur()], p=0.8),
        *END,
    ],
    "shifts": [
        *(A.SmallestMaxSize(70), A.RandomCrop(64, 64)),
        A.Affine(scale=(0.8, 1.2), rotate=(-20, 20), translate_percent=(-0.1, 0.1), p=0.8),
        *(A.HueSaturationValue(p=0.8), A.ToGray(p=0.3), *END),
    ],
    "letterbox": [
        *(A.LongestMaxSize(64), A.PadIfNeeded(64, 64, border_mode=cv2.BORDER_REFLECT_101)),
        *(A.RandomRotate90(), A.Transpose(), A.Perspective(p=0.8)),
        *(A.ColorJitter(p=0.5), A.CoarseDropout(p=0.5), A.CLAHE(p=0.3), *END),
    ],
}


class Augmented(data.Dataset[Any]):
    """Images through a pipeline, with masks if there are any."""

    def __init__(self, images: Sequence[Path], pipeline: str, masks: Sequence[Path] = ()) -> None:
        self.images, self.masks = images, masks
        self.transform = A.Compose(PIPELINES[pipeline], seed=7)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        read: Any = cv2.imread(str(self.images[index]))
        image = cv2.cvtColor(read, cv2.COLOR_BGR2RGB)
        if not self.masks:
            return self.transform(image=image)["image"], index
        mask = cv2.imread(str(self.masks[index]), cv2.IMREAD_GRAYSCALE)
        both = self.transform(image=image, mask=mask)
        return both["image"], both["mask"]


class Careless(data.Dataset[Any]):
    """Changes the arrays that it has read, keeps them, and writes them to files."""

    def __init__(self, images: Sequence[Path], folder: Path) -> None:
        self.images, self.folder = images, folder
        self.kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return 2 * len(self.images)

    def __getitem__(self, index: int) -> Any:
        number = index % len(self.images)
        if number not in self.kept:
            self.kept[number] = cv2.imread(str(self.images[number]))
        image = self.kept[number]
        small = cv2.resize(image, (40, 30))
        image[3:9, ::2] = 255 - image[3:9, ::2]
        mirrored = np.ascontiguousarray(small[:, ::-1])
        cv2.rectangle(mirrored, (3, 3), (20, 20), (1, 2, 3), 2)
        cv2.imwrite(str(self.folder / f"{index}.png"), image)
        again: Any = cv2.imread(str(self.folder / f"{index}.png"))
        return small, mirrored, again.astype(np.int64).sum(), cv2.resize(image, (20, 20)).astype(np.float32)
