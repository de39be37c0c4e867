"""Images that lie decoded in one array in memory, and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image


@dataclass(frozen=True, eq=False, repr=False)
class ArraySource:
    """RGB images in memory that the user owns: what is written to it changes the samples.

    Attributes:
        images: uint8 [m, height, width, 3] with any strides, a view.
        rows: int64 [n]; the image of sample i is images[rows[i]].
        labels: int64 [n].
    """

    images: npt.NDArray[np.uint8]
    rows: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"ArraySource(n={len(self)})"

    def path(self, i: int) -> None:
        """None: no sample has a file."""

    def label(self, i: int) -> int:
        """The label of sample `i`; raises IndexError where it is out of range."""
        return int(self.labels[i])

    def image(self, i: int) -> Image.Image:
        """Sample `i` as torchvision's data sets make an image of it."""
        return Image.fromarray(self.images[self.rows[i]])

    def take(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> ArraySource:
        """The samples at `indices`, in that order, repeats allowed; negative ones count from the end.

        Raises:
            IndexError: an index is out of range.
        """
        order = np.asarray(indices, dtype=np.int64).reshape(-1)
        return ArraySource(self.images, self.rows[order], self.labels[order])
