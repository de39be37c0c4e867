"""Images that lie decoded in one array in memory, and their labels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from headrace._native import ffi
from headrace.records import Mode
from headrace.sources.source import Indices, Source, TensorRows


@dataclass(frozen=True, eq=False, repr=False)
class ArraySource(Source):
    """Images in memory that the user owns: what is written to it changes the samples.

    Attributes:
        images: uint8 [m, height, width, channels] with any strides, a view; 3 channels, or 1 for gray.
        targets: int64 [m]; labels of all images.
        rows: int64 [n]; the image of sample i is images[rows[i]]. None for all, in order.
    """

    images: npt.NDArray[np.uint8]
    targets: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64] | None = None
    decoded = True
    entries = None

    def __post_init__(self) -> None:
        labels = self.targets if self.rows is None else self.targets[self.rows]
        object.__setattr__(self, "labels", labels)

    def path(self, i: int) -> None:
        """Returns None, as no sample has a file."""

    def native(self) -> ffi.Source:
        """See `Source`; gray becomes three equal channels, which take no memory."""
        rows = np.arange(len(self)) if self.rows is None else self.rows
        return ffi.Source.of_pixels(np.broadcast_to(self.images, (*self.images.shape[:3], 3)), rows)

    def _image(self, i: int, mode: Mode) -> Image.Image:
        pixels = self.images[i if self.rows is None else self.rows[i]]
        image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
        return image if image.mode == mode else image.convert(mode)

    def take(self, indices: Indices) -> ArraySource:
        rows = np.arange(len(self)) if self.rows is None else self.rows
        return replace(self, rows=rows[np.asarray(indices, dtype=np.int64).reshape(-1)])

    def tensors(self) -> TensorRows | None:
        if min(self.images.strides) < 0 or not self.images.flags.writeable:
            return None  # torch makes no view of steps backwards, nor of memory that mustn't be written
        tensors = torch.from_numpy(self.images).permute(0, 3, 1, 2), torch.from_numpy(self.targets)
        return TensorRows(tensors, None if self.rows is None else torch.from_numpy(self.rows))
