"""Datasets in memory: `TensorDataset`, and torchvision's small ones that hold all images in one array.

Only these classes themselves. Where a transform works on levels alone, a batch is a gather of rows;
otherwise native code reads colour images as it reads those of files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset, TensorDataset
from torchvision import datasets

from headrace.plan.pointwise import PointwiseTable
from headrace.plan.segments import GatherSegment, Step
from headrace.plan.transform import lower_values
from headrace.sources.arrays import ArraySource
from headrace.transforms.origin import describe_callable, located
from headrace.transforms.patches import find_patched

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

# The longest edge that native code takes, in pixels: kMaxEdge.
MAX_EDGE = 1 << 20


Gather = tuple[GatherSegment, PointwiseTable | None, tuple[Step, ...]]


def plan_gather(dataset: Any) -> Gather | None:
    """How to gather batches of `dataset`, the table of its images' values, and the table's steps; None where
    its samples must be asked for one by one.

    Only `TensorDataset` itself, torchvision's data sets in memory, and a `Subset` of them: a subclass may do
    anything to a sample.
    """
    if type(dataset) is TensorDataset:
        tensors = dataset.tensors
        plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in tensors)
        return (
            (_segment(f"TensorDataset(n={len(dataset)})", tensors), None, ()) if tensors and plain else None
        )
    if type(dataset) is not Subset:
        return _gather_images(dataset)
    inner = plan_gather(dataset.dataset)
    if inner is None:
        return None
    try:
        rows = torch.as_tensor(dataset.indices)
    except (TypeError, ValueError, RuntimeError):
        return None  # whatever they are, the dataset itself understands them
    if rows.ndim != 1 or (len(rows) and rows.dtype not in INTEGERS):
        return None
    whole, table, steps = inner
    rows = rows.to(torch.int64)
    rows = rows if whole.rows is None else whole.rows[rows]
    what = f"Subset(n={len(rows)}) of {whole.steps[0].text}"
    return _segment(what, whole.tensors, rows), table, steps


def _segment(what: str, tensors: tuple[torch.Tensor, ...], rows: torch.Tensor | None = None) -> GatherSegment:
    step = Step(what, "rows are gathered a batch at a time", "exact")
    return GatherSegment(steps=(step,), tensors=tensors, rows=rows)


def _gather_images(dataset: Any) -> Gather | None:
    """The same of torchvision's data sets: uint8 [n, channels, height, width], and labels int64 [n]."""
    known = type(dataset) in GREY or type(dataset) in COLOUR
    if not known or dataset.transform is None or dataset.target_transform is not None or find_patched():
        return None
    source = read_images(dataset)
    if isinstance(source, str):
        return None
    if type(dataset) in GREY:
        images = dataset.data[:, None]
    elif min(source.images.strides) >= 0 and source.images.flags.writeable:
        images = torch.from_numpy(source.images).permute(0, 3, 1, 2)
    else:  # torch makes no view of steps backwards, nor of memory that mustn't be written
        return None
    lowered = lower_values(dataset.transform, images.shape[1])
    if lowered is None:
        return None
    tensors = images, torch.from_numpy(source.labels)
    return (_segment(f"{type(dataset).__name__}(n={len(source)})", tensors), *lowered)


def read_images(dataset: Any) -> ArraySource | str:
    """The images and labels of a data set of a class in `GREY`, each level three times, or `COLOUR`; or why
    they can't be taken as arrays."""
    kind = type(dataset)
    reason = patched_reason(dataset, kind)
    if reason is not None:
        return reason
    data = dataset.data
    if kind in GREY:
        labels = GREY[kind](dataset)
        if type(data) is not torch.Tensor or data.dtype != torch.uint8 or data.ndim != 3:
            return "its data isn't a tensor of uint8 with 3 dimensions"
        if data.device.type != "cpu":
            return f"its data is on {data.device}"
        images = np.broadcast_to(data.numpy()[..., None], (*data.shape, 3))
    else:
        labels = COLOUR[kind](dataset)
        if type(data) is not np.ndarray or data.dtype != np.uint8 or data.ndim != 4:
            return "its data isn't an array of uint8 with 4 dimensions"
        images = data if isinstance(dataset, datasets.CIFAR10) else data.transpose(0, 2, 3, 1)
    if images.shape[3] != 3 or not all(0 < edge <= MAX_EDGE for edge in images.shape[1:3]):
        return f"its data has shape {list(data.shape)}, which isn't that of images"
    if labels is None or len(labels) != len(images):
        return "its labels aren't one int per image"
    return ArraySource(images, np.arange(len(images)), labels)


Labels = npt.NDArray[np.int64]


def _array_labels(dataset: Any) -> Labels | None:
    return _integers(dataset.targets if hasattr(dataset, "targets") else dataset.labels)


def _qmnist_labels(dataset: Any) -> Labels | None:
    targets = dataset.targets
    if not dataset.compat or not isinstance(targets, torch.Tensor) or targets.ndim != 2:
        return None
    return _integers(targets[:, 0])


def _cifar_labels(dataset: Any) -> Labels | None:
    # Taken as they are by torch's collation, which keeps the type of anything but Python's ints.
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


# Data sets by class, each with what reads its labels.
GREY: dict[type, Callable[[Any], Labels | None]] = {
    datasets.MNIST: _array_labels,
    datasets.FashionMNIST: _array_labels,
    datasets.KMNIST: _array_labels,
    datasets.EMNIST: _array_labels,
    datasets.QMNIST: _qmnist_labels,
}
COLOUR: dict[type, Callable[[Any], Labels | None]] = {
    datasets.CIFAR10: _cifar_labels,
    datasets.CIFAR100: _cifar_labels,
    datasets.SVHN: _array_labels,
    datasets.STL10: _array_labels,
}


def patched_reason(dataset: Any, written: type[Any]) -> str | None:
    """Why reading a sample isn't what the author of the class `written` wrote; None when it is."""
    method, whole = type(dataset).__getitem__, getattr(dataset, "__getitems__", None)
    # A function that wraps another may have its name and module.
    if getattr(method, "__globals__", {}).get("__name__") != written.__module__:
        return f"its __getitem__ was replaced by {located(describe_callable(method), method)}"
    if whole is not None:
        return f"its __getitems__ is {located(describe_callable(whole), whole)}"
    return None
