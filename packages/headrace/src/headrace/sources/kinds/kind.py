"""Kinds of datasets, and the results of reading a dataset of a known kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from headrace.decoding import Decode
from headrace.records import Mode
from headrace.sources.source import Source, TensorRows
from headrace.transforms.op import UNKNOWN, Extent
from headrace.transforms.origin import located


@dataclass(frozen=True, eq=False)
class Recognized:
    """A dataset whose images native code can read.

    Attributes:
        what: the dataset in words, e.g. ``ImageFolder(n=1281167)``.
        source: its images and labels.
        transform: the user's transform of the image, or None.
        target_transform: the user's transform of the label, or None.
        note: a remark for `explain()`.
        root: the folder that all files are in, or None if it isn't known.
        size: size of its images.
        mode: "RGB" or "L": the dataset reads files as Pillow's ``convert(mode)`` gives them.
        decode: function of a file's bytes by which the dataset reads uint8 tensors [3, height, width], such
            as `torchvision.io.decode_image`, or None if it reads images with Pillow.
        upright: whether `decode` turns them as EXIF says.
        read: function of a sample's index by which the dataset itself gives (image, label), if it has
            rules of its own for files that can't be read, or None.
    """

    what: str
    source: Source
    transform: Any
    target_transform: Callable[[int], Any] | None
    note: str = ""
    root: str | None = None
    size: Extent = UNKNOWN
    mode: Mode = "RGB"
    decode: Decode | None = None
    upright: bool = False
    read: Callable[[int], tuple[Image.Image, int]] | None = None


@dataclass(frozen=True)
class InTensors:
    """A dataset whose samples are `rows` of tensors; `reason` is due if they aren't gathered."""

    what: str
    rows: TensorRows
    reason: str = "runs as written: rows are gathered natively for the default collate_fn and batching only"


@dataclass(frozen=True)
class Refusal:
    """A dataset that runs as written: `what` it is and the `reason`."""

    what: str
    reason: str


Reading = Recognized | InTensors | Refusal


class Kind(ABC):
    """A kind of dataset: its classes, whose `__getitem__` is known exactly, and how their objects are read.

    Only these classes themselves are meant. A subclass of one may do anything and runs as written.

    Attributes:
        classes: the classes.
        imported: full names of classes of packages that Headrace itself doesn't import.
    """

    classes: ClassVar[tuple[type, ...]] = ()
    imported: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def read(cls, dataset: Any) -> Reading:
        """Returns what native code can do for `dataset`, an object of one of the classes.

        Looks at attributes and at no sample. Whatever isn't as the class's author left it is refused; see
        `patched_reason`.
        """


def patched_reason(dataset: Any, written: type[Any]) -> str | None:
    """Why reading a sample isn't what the author of the class `written` wrote, or None if it is."""
    method, whole = type(dataset).__getitem__, getattr(dataset, "__getitems__", None)
    # A function that wraps another may have its name and module.
    if getattr(method, "__globals__", {}).get("__name__") != written.__module__:
        return f"its __getitem__ was replaced by {located(method)}"
    if whole is not None:
        return f"its __getitems__ is {located(whole)}"
    return None


def as_integers(values: Any) -> npt.NDArray[np.int64] | None:
    """A list, array or tensor of integers of one dimension as int64, or None if it is anything else."""
    if len(values) == 0:
        return np.empty(0, np.int64)
    try:
        order = np.asarray(values)
    except (TypeError, ValueError):
        return None
    return order.astype(np.int64) if order.ndim == 1 and order.dtype.kind in "iu" else None
