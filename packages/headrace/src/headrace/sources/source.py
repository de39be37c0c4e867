"""The form that datasets take for native code: images and integer labels by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset

from headrace.records import EntryPoints, Mode, RemoteStats

if TYPE_CHECKING:  # what these bring takes a worker long to import
    from PIL import Image

    from headrace._native import ffi
    from headrace.sources.stores.lease import Lease

# Names of files of the formats that native code decodes, by Pillow's names of these.
EXTENSIONS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "PNG": (".png",),
    "WEBP": (".webp",),
}

S = TypeVar("S", bound="Source")
Indices = Sequence[int] | npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class TensorRows:
    """Samples that are rows of tensors [m, …] in memory: all of them, or `rows`, int64 [n]."""

    tensors: tuple[torch.Tensor, ...]
    rows: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.tensors[0]) if self.rows is None else len(self.rows)

    def take(self, indices: torch.Tensor) -> TensorRows:
        """The samples at `indices`, int64."""
        return TensorRows(self.tensors, indices if self.rows is None else self.rows[indices])


class Source(ABC):
    """The samples of a dataset, in their order: read-only, picklable, and cheap to share.

    A file without a format that native code decodes is no error: what native code can't read, `image` does.
    `SourceTests` (packages/headrace/tests/sources) has what every source must do.

    Attributes:
        labels: int64 [n].
        entries: where decoding may start within the files, or None if that isn't known.
        decoded: whether images are in memory, decoded: `path` then gives None, and `open` isn't called.
        leased: whether a `lease` must be held on samples while native code reads them.
        store: the object store that samples are fetched from, in words; empty for none.
        lease_bytes: bytes that leases may reasonably hold; only if `leased`.
    """

    labels: npt.NDArray[np.int64]
    entries: EntryPoints | None
    decoded: ClassVar[bool] = False
    leased: ClassVar[bool] = False
    store: str = ""
    lease_bytes: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={len(self)})"

    def label(self, i: int) -> int:
        """The label of sample `i`. Raises IndexError as a list does."""
        return int(self.labels[i])

    @abstractmethod
    def path(self, i: int) -> str | None:
        """The file or URL of sample `i`, or None if it has none. Raises IndexError as a list does."""

    @abstractmethod
    def native(self) -> ffi.Source | None:
        """The place where native code finds the samples, or None if only a lease says so."""

    @abstractmethod
    def take(self: S, indices: Indices) -> S:
        """The samples at `indices`, in that order, repeats allowed; negative ones count from the end. Raises
        IndexError if one is out of range."""

    def open(self, i: int) -> BinaryIO:
        """The image file of sample `i`, for reading. Raises OSError or HeadraceError if it can't be had."""
        raise TypeError(f"sample {i} of {self!r} has no file")

    def image(self, i: int, mode: Mode = "RGB", *, upright: bool = False) -> Image.Image:
        """Sample `i` as the image that the transforms get: in `mode`, and turned as its EXIF data say if
        `upright`. Raises whatever Pillow does."""
        from PIL import ImageOps

        image = self._image(i, mode)
        return ImageOps.exif_transpose(image) if upright else image

    def _image(self, i: int, mode: Mode) -> Image.Image:
        from headrace.sources.reading import load_file

        return load_file(self.open(i), mode)

    def count_extensions(self, extensions: Sequence[str]) -> int:
        """Counts the files that end in one of `extensions` (ASCII, with the dot), in upper or lower case."""
        raise TypeError(f"{self!r} has no files that end in {extensions}")

    def formats(self, names: Iterable[str]) -> dict[str, int]:
        """Counts the files of each of the formats `names` by their extensions, without formats of no file."""
        counts: dict[str, int] = {}
        for name in names:
            if sum(counts.values()) == len(self):  # most often, all are of the first
                break
            if count := self.count_extensions(EXTENSIONS[name]):
                counts[name] = count
        return counts

    def with_entries(self: S, root: str | None) -> tuple[S, str]:  # noqa: ARG002
        """This with the entry points of its files, if there are any, and a remark on them for `explain()`.
        `root` is the folder that all files are in, or None if it isn't known."""
        return self, ""

    def digest(self) -> str | None:
        """A digest of names and labels, in order, by which a saved state knows its dataset, or None.

        It never changes between versions, nor when the folder or store moves that all files are in.
        """
        return None

    def tensors(self) -> TensorRows | None:
        """The samples as rows of images [m, channels, height, width] and of labels [m], if torch sees them so
        in memory."""
        return None

    def lease(self, samples: npt.NDArray[np.int64]) -> Lease | None:  # noqa: ARG002
        """Begins to fetch `samples`, each 0 or more, or returns None if the source isn't `leased`."""
        return None

    def holding(self, samples: npt.NDArray[np.int64]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Within this, `open` finds `samples`, each 0 or more, without waiting for them one by one."""
        return nullcontext()

    def stats(self) -> RemoteStats | None:
        """Returns what this process has fetched so far, or None without a store."""
        return None


def source_of(dataset: Any) -> Source | None:
    """The source of one of Headrace's own datasets, or of what `dataset` is a Subset of, or None."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    source = getattr(dataset, "source", None)  # nearly always None: to ask for its class takes longer
    return source if source is not None and isinstance(source, Source) else None


def samples_of(indices: Any, size: int) -> npt.NDArray[np.int64] | None:
    """`indices` as samples from 0 on, or None if a dataset of `size` samples doesn't have them all."""
    try:
        order = np.array(indices, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    if ((order < -size) | (order >= size)).any():
        return None
    order[order < 0] += size
    return order
