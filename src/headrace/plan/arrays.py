"""torchvision's small sets, which hold all their pictures in one array: taken as that array and a table.

Only these classes themselves, with a transform of pointwise steps alone: a picture is then a row of the
array, and its values those of the table of levels, as on files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torchvision import datasets

from headrace.plan.pointwise import PointwiseTable
from headrace.plan.transform import StepNote, lower_values

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class ArraySet:
    """A recognised set.

    Attributes:
        images: uint8 [n, channels, height, width], a view of the set's own memory.
        labels: int64 [n].
        values: what the levels become.
        notes: the user's transforms in words.
    """

    images: torch.Tensor
    labels: torch.Tensor
    values: PointwiseTable
    notes: tuple[StepNote, ...]


def read_arrays(dataset: Any) -> ArraySet | None:
    """`dataset` as arrays; None where its samples must be asked for one by one."""
    read = READERS.get(type(dataset))
    if read is None or dataset.transform is None or dataset.target_transform is not None:
        return None
    if not str(type(dataset).__getitem__.__module__).startswith("torchvision."):
        return None  # replaced by someone
    arrays = read(dataset)
    if arrays is None or len(arrays[0]) != len(arrays[1]):
        return None
    images, labels = arrays
    lowered = lower_values(dataset.transform, images.shape[1])
    return None if lowered is None else ArraySet(images, labels, *lowered)


Arrays = tuple[torch.Tensor, torch.Tensor]


def _mnist(dataset: Any) -> Arrays | None:
    labels = _integers(dataset.targets)
    return None if labels is None else _grey(dataset, labels)


def _qmnist(dataset: Any) -> Arrays | None:
    targets = dataset.targets
    if not dataset.compat or not isinstance(targets, torch.Tensor) or targets.ndim != 2:
        return None
    labels = _integers(targets[:, 0])
    return None if labels is None else _grey(dataset, labels)


def _grey(dataset: Any, labels: torch.Tensor) -> Arrays | None:
    data = dataset.data
    if type(data) is not torch.Tensor or data.dtype != torch.uint8 or data.ndim != 3:
        return None
    return (data[:, None], labels) if data.device.type == "cpu" else None


def _cifar(dataset: Any) -> Arrays | None:
    # Taken as they are by torch's collation, which keeps the type of anything but Python's ints.
    if type(dataset.targets) is not list or any(type(target) is not int for target in dataset.targets):
        return None
    images, labels = _pixels(dataset.data, channels_at=3), torch.tensor(dataset.targets, dtype=torch.int64)
    return None if images is None else (images.permute(0, 3, 1, 2), labels)


def _svhn(dataset: Any) -> Arrays | None:
    images, labels = _pixels(dataset.data, channels_at=1), _integers(dataset.labels)
    return None if images is None or labels is None else (images, labels)


def _pixels(data: Any, *, channels_at: int) -> torch.Tensor | None:
    if type(data) is not np.ndarray or data.dtype != np.uint8 or data.ndim != 4:
        return None
    # What torch makes no view of: steps backwards, and memory that mustn't be written.
    if data.shape[channels_at] != 3 or min(data.strides) < 0 or not data.flags.writeable:
        return None
    return torch.from_numpy(data)


def _integers(labels: Any) -> torch.Tensor | None:
    """Labels that int() would be called on, as int64 [n]."""
    if type(labels) is np.ndarray and labels.dtype.kind in "iu" and labels.dtype != np.uint64:
        labels = torch.from_numpy(labels.astype(np.int64))
    if type(labels) is not torch.Tensor or labels.ndim != 1 or labels.dtype not in INTEGERS:
        return None
    return labels.to("cpu", torch.int64)


READERS: dict[type, Callable[[Any], Arrays | None]] = {
    datasets.MNIST: _mnist,
    datasets.FashionMNIST: _mnist,
    datasets.KMNIST: _mnist,
    datasets.EMNIST: _mnist,
    datasets.QMNIST: _qmnist,
    datasets.CIFAR10: _cifar,
    datasets.CIFAR100: _cifar,
    datasets.SVHN: _svhn,
}
