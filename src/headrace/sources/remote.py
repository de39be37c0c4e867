"""What sources in object stores have in common, and single image files there."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
from torch.utils.data import Subset

from headrace.records import RemoteStats
from headrace.remote.access import Access
from headrace.remote.lease import Lease, Wanted
from headrace.sources.folder import ImageSource


class RemoteSamples:
    """A part of every source whose bytes have to be fetched.

    Attributes:
        access: how.
    """

    access: Access

    @abstractmethod
    def wanted(self, samples: Sequence[int] | npt.NDArray[np.int64]) -> list[Wanted]:
        """The bytes of `samples`, each 0 or more."""

    if TYPE_CHECKING:  # of the source that this is a part of

        def __len__(self) -> int: ...

        def path(self, i: int) -> str: ...

    def open(self, i: int) -> BinaryIO:
        """The image file of sample `i`, in memory. Raises RemoteError."""
        return io.BytesIO(self.access.records().read(self.wanted([range(len(self))[i]])[0]))

    def begin(
        self,
        samples: npt.NDArray[np.int64],
        position: int,
        next_positions: Sequence[int | None] | None = None,
        *,
        urgent: bool = False,
    ) -> Lease:
        """Begins to fetch `samples`, which are needed from `position` on; see `headrace.remote.records`."""
        positions = range(position, position + len(samples))
        then = [None] * len(samples) if next_positions is None else next_positions
        return self.access.records().begin(self.wanted(samples), positions, then, urgent=urgent)

    def stats(self) -> RemoteStats:
        """What this process fetched so far."""
        return self.access.records().stats()


@dataclass(frozen=True, eq=False, repr=False)
class RemoteImageSource(RemoteSamples, ImageSource):
    """As `ImageSource`; `paths` are URLs of whole objects."""

    access: Access

    @classmethod
    def of(cls, source: ImageSource, access: Access) -> RemoteImageSource:
        """The objects that `source` lists."""
        return cls(source.paths, source.offsets, source.labels, access)

    def wanted(self, samples: Sequence[int] | npt.NDArray[np.int64]) -> list[Wanted]:
        """See `RemoteSamples`: sizes aren't known before the objects are asked for them."""
        return [Wanted(self.path(int(i)), 0, None, None) for i in samples]

    def take(self, indices: Sequence[int] | npt.NDArray[np.integer[Any]]) -> RemoteImageSource:
        """See `ImageSource`."""
        taken = super().take(indices)
        return replace(self, paths=taken.paths, offsets=taken.offsets, labels=taken.labels)


def remote_samples(dataset: Any) -> RemoteSamples | None:
    """Where the samples of `dataset`, or of what it is a Subset of, are fetched from; None: they aren't."""
    while type(dataset) is Subset:
        dataset = dataset.dataset
    source = getattr(dataset, "source", None)
    return source if isinstance(source, RemoteSamples) else None
