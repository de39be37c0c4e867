"""Samples in object stores: those of a pack, and single image files."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from headrace.errors import PackError
from headrace.records import RemoteStats
from headrace.sources.folder import ImageSource
from headrace.sources.pack import PackSource, pack_fields
from headrace.sources.source import Source
from headrace.sources.stores.access import Access
from headrace.sources.stores.cache import Record
from headrace.sources.stores.lease import Lease, Wanted
from headrace.sources.stores.records import object_key


class RemoteSource(Source):
    """A mix-in of sources whose samples are fetched, to be put before the class that says where they are."""

    access: Access  # to the store, and to the cache of what it sent
    leased = True

    @property
    def store(self) -> str:  # type: ignore[override]
        return str(self.access)

    @property
    def lease_bytes(self) -> int:  # type: ignore[override]
        """See `Source`: what the cache may hold."""
        return self.access.records().capacity

    @abstractmethod
    def wanted(self, samples: Sequence[int] | npt.NDArray[np.int64]) -> list[Wanted]:
        """The bytes of `samples`, each 0 or more."""

    def native(self) -> None:
        """See `Source`."""

    def open(self, i: int) -> BinaryIO:
        """The image file of sample `i`, in memory. Raises RemoteError."""
        return io.BytesIO(self.access.records().read(self.wanted([range(len(self))[i]])[0]))

    def lease(self, samples: npt.NDArray[np.int64]) -> Lease:
        return self.access.records().begin(self.wanted(samples))

    def holding(self, samples: npt.NDArray[np.int64]) -> AbstractContextManager[None]:
        return self.access.records().holding(self.wanted(samples))

    def stats(self) -> RemoteStats:
        return self.access.records().stats()


@dataclass(frozen=True, eq=False, repr=False)
class RemoteImageSource(RemoteSource, ImageSource):
    """An `ImageSource` whose `paths` are URLs of whole objects."""

    access: Access = field(kw_only=True)

    @classmethod
    def of(cls, source: ImageSource, access: Access) -> RemoteImageSource:
        """The objects that `source` lists."""
        return cls(source.paths, source.offsets, source.labels, access=access)

    def wanted(self, samples: Sequence[int] | npt.NDArray[np.int64]) -> list[Wanted]:
        """See `RemoteSource`: sizes aren't known before they are requested."""
        return [Wanted(self.path(int(i)), 0, None, None) for i in samples]


@dataclass(frozen=True, eq=False, repr=False)
class RemotePackSource(RemoteSource, PackSource):
    """A `PackSource` of shards that are objects: `paths` and `offsets` are their URLs."""

    access: Access
    etag: str  # the version of the index

    @classmethod
    def at(cls, url: str, access: Access) -> RemotePackSource:
        """All samples of the pack at `url`: its folder, or its index. Raises PackError if its index can't be
        had, or isn't one."""
        from headrace.sources.pack_index import FILE_NAME, PackIndex, leaves_folder

        at = url if url.endswith(".arrow") else f"{url.rstrip('/')}/{FILE_NAME}"
        file, etag = access.index(at)
        try:
            index = PackIndex(file)
        except PackError as error:
            file.unlink(missing_ok=True)  # the copy may be damaged: the next time another is fetched
            raise PackError(f"{at}, kept as {error}") from error
        # `PackIndex` trusts what lies in the user's cache; this one was only brought there.
        outside = [shard.name for shard in index.about.shards if leaves_folder(shard.name)]
        if outside:
            raise PackError(
                f"{at} is the index of {outside[0]!r}, a file outside of its folder. Pack it: headrace pack."
            )
        folder = at.rsplit("/", 1)[0]
        urls = [f"{folder}/{shard.name}".encode() for shard in index.about.shards]
        return cls(**pack_fields(index, urls), access=access, etag=etag)

    @cached_property
    def _dataset(self) -> str:
        """The cache's name for this version of the pack."""
        return f"{object_key(self.access.url, self.access.options)}\0{self.etag}"

    @property
    def version(self) -> str:
        """The version of the index if it has no checksums, else an empty string."""
        return self.etag if self.index.about.made.get("checksums") is False else ""

    @cached_property
    def _sizes(self) -> npt.NDArray[np.uint64]:
        """The bytes of each shard by the index, which may be damaged."""
        return np.array([min(max(0, shard.size), 1 << 62) for shard in self.index.about.shards], np.uint64)

    @cached_property
    def _urls(self) -> list[str]:
        """The URL of each shard."""
        return self.paths.tobytes().decode().split("\0")[:-1]

    def wanted(self, samples: Sequence[int] | npt.NDArray[np.int64]) -> list[Wanted]:
        """The bytes of `samples`, each 0 or more. Raises PackError if the index names none."""
        order = np.asarray(samples, np.int64)
        rows = order if self.rows is None else self.rows[order]
        self._check(order, rows)
        checksums = self.index.numbers("checksum")[rows].tolist()
        begins, sizes = self.extents.begins[order].tolist(), self.extents.sizes[order].tolist()
        shards = self.extents.shards[order].tolist()
        return [
            Wanted(self._urls[shard], begin, size, self._record(shard, begin, size, checksum))
            for shard, begin, size, checksum in zip(shards, begins, sizes, checksums, strict=True)
        ]

    def bytes_at(self, i: int, offset: int, size: int) -> bytes:
        """Part of the shard that sample `i` is in, bypassing the cache. Raises RemoteError."""
        fetched = self.access.records().start_fetch(self.shard(i), offset, offset + size, None)
        return bytes(fetched.result().data)

    def _check(self, order: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
        shards, begins, sizes = (
            column[order] for column in (self.extents.shards, self.extents.begins, self.extents.sizes)
        )
        # Of what is in none of the shards, the first byte is beyond an end of 0.
        ends = np.append(self._sizes, np.uint64(0))[np.minimum(shards, len(self._sizes))]
        wrong = rows[(shards >= len(self._sizes)) | (begins > ends) | (sizes > ends - begins)]
        if len(wrong):
            raise PackError(
                f"The index of {self.access.url} is damaged: row {wrong[0]} is in none of its shards. Make it"
                " again."
            )

    def _record(self, shard: int, begin: int, size: int, checksum: int) -> Record:
        key = f"{shard}\0{begin}"
        if self.version:
            return Record(self._dataset, key, size, None)
        return Record(self._dataset, f"{key}\0{checksum:08x}", size, checksum)
