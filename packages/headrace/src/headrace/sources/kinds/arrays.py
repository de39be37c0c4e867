"""torchvision's small datasets, which hold all images in one array: MNIST, CIFAR and their kin."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torchvision import datasets

from headrace.records import Mode
from headrace.sources.arrays import ArraySource
from headrace.sources.kinds.kind import Kind, Recognized, Refusal, patched_reason
from headrace.transforms.op import MAX_SIZE, Extent

Labels = npt.NDArray[np.int64]
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class _Arrays(Kind):
    """`data` has all images; `mode` is theirs."""

    mode: ClassVar[Mode]

    @classmethod
    def read(cls, dataset: Any) -> Recognized | Refusal:
        name = type(dataset).__name__
        images = patched_reason(dataset, type(dataset)) or cls._images(dataset)
        if isinstance(images, str):
            return Refusal(name, images)
        n, height, width, channels = images.shape
        if channels != len(cls.mode) or not all(0 < edge <= MAX_SIZE for edge in (height, width)):
            return Refusal(name, f"its data has shape {list(dataset.data.shape)}, which isn't that of images")
        labels = cls._labels(dataset)
        if labels is None or len(labels) != n:
            return Refusal(name, "its labels aren't one int per image")
        return Recognized(
            f"{name}(n={n})",
            ArraySource(images, labels),
            dataset.transform,
            dataset.target_transform,
            note=f"{height}×{width} pixels each, in memory",
            size=Extent(height, width, exact=True),
            mode=cls.mode,
        )

    @classmethod
    @abstractmethod
    def _images(cls, dataset: Any) -> npt.NDArray[np.uint8] | str:
        """The images, a view [n, height, width, channels], or why there are none."""

    @classmethod
    def _labels(cls, dataset: Any) -> Labels | None:
        """The labels, or None if they aren't integers."""
        return _integers(dataset.targets if hasattr(dataset, "targets") else dataset.labels)


class GrayArrays(_Arrays):
    """`data` is a tensor uint8 [n, height, width]."""

    classes = (datasets.MNIST, datasets.FashionMNIST, datasets.KMNIST, datasets.EMNIST, datasets.QMNIST)
    mode = "L"

    @classmethod
    def _images(cls, dataset: Any) -> npt.NDArray[np.uint8] | str:
        data = dataset.data
        if type(data) is not torch.Tensor or data.dtype != torch.uint8 or data.ndim != 3:
            return "its data isn't a tensor of uint8 with 3 dimensions"
        return f"its data is on {data.device}" if data.device.type != "cpu" else data.numpy()[..., None]

    @classmethod
    def _labels(cls, dataset: Any) -> Labels | None:
        targets = dataset.targets  # QMNIST: a row of numbers per image
        if type(dataset) is not datasets.QMNIST:
            return _integers(targets)
        if not dataset.compat or not isinstance(targets, torch.Tensor) or targets.ndim != 2:
            return None
        return _integers(targets[:, 0])


class ColorArrays(_Arrays):
    """`data` is an array uint8 [n, 3, height, width]."""

    classes: ClassVar[tuple[type, ...]] = (datasets.SVHN, datasets.STL10)
    mode = "RGB"

    @classmethod
    def _images(cls, dataset: Any) -> npt.NDArray[np.uint8] | str:
        data = dataset.data
        if type(data) is not np.ndarray or data.dtype != np.uint8 or data.ndim != 4:
            return "its data isn't an array of uint8 with 4 dimensions"
        return data.transpose(0, 2, 3, 1)


class CIFAR(ColorArrays):
    """`data` is an array uint8 [n, height, width, 3]."""

    classes = (datasets.CIFAR10, datasets.CIFAR100)

    @classmethod
    def _images(cls, dataset: Any) -> npt.NDArray[np.uint8] | str:
        images = super()._images(dataset)
        return images if isinstance(images, str) else dataset.data

    @classmethod
    def _labels(cls, dataset: Any) -> Labels | None:
        # torch's collation keeps the type of anything but Python's ints.
        if type(dataset.targets) is not list or not set(map(type, dataset.targets)) <= {int}:
            return None
        try:
            return np.array(dataset.targets, np.int64)
        except OverflowError:
            return None


def _integers(labels: Any) -> Labels | None:
    """Labels that int() would be called on, as int64 [n]."""
    if type(labels) is np.ndarray and labels.ndim == 1 and labels.dtype.kind in "iu":
        return None if labels.dtype == np.uint64 else labels.astype(np.int64)
    if type(labels) is not torch.Tensor or labels.ndim != 1 or labels.dtype not in INTEGERS:
        return None
    return labels.to("cpu", torch.int64).numpy()
