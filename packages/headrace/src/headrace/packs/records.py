"""What is packed, in which order, into which shards: decided before the first byte is written."""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from PIL import Image

from headrace.errors import PackError

JPEG_START = b"\xff\xd8\xff"

# What Pillow raises for files that it can't open or decode.
PILLOW_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)

# Names of files may hold bytes that aren't text.
TEXT = "utf-8", "surrogateescape"
# Larger sizes, as of a damaged index, and times of modification, of the year 2262, are taken for this.
MOST = (1 << 63) - 1

# Called with (samples done, samples in all), now and then.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Record:
    """A sample that hasn't been read yet.

    Attributes:
        key: a name that is unique in the source; ImageFolder: the path below the root, without extension.
        size: the size of its image and other fields in the source, in bytes.
        stamp: a number that differs where the source has changed, as a file's time of modification in
            nanoseconds.
        number, names: what the input needs to read it, such as a label and paths.
    """

    key: str
    size: int
    stamp: int
    number: int
    names: tuple[str, ...] = ()


class Records(Sequence[Record]):
    """The samples of a source, in columns: a record like ImageNet's takes 110 bytes, as an object 500.

    A part, `records[i:j]`, shares the columns; pickled, it takes only its own records along.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._keys, self._names = Texts(), Texts()
        self.sizes, self._stamps, self._numbers = array("q"), array("q"), array("q")
        for record in records:
            self._keys.append(record.key)
            self._names.append("\0".join(record.names))
            self.sizes.append(min(record.size, MOST))
            self._stamps.append(min(record.stamp, MOST))
            self._numbers.append(record.number)
        self._order: range | npt.NDArray[np.int64] = range(len(self.sizes))

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, i: int) -> Record: ...

    @overload
    def __getitem__(self, i: slice) -> Records: ...

    def __getitem__(self, i: int | slice) -> Record | Records:
        return self.take(self._order[i]) if isinstance(i, slice) else self._record(self._order[i])

    def __iter__(self) -> Iterator[Record]:
        return map(self._record, self._order)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (tuple(self),)

    def take(self, order: range | npt.NDArray[np.int64]) -> Records:
        """The records of these numbers in the source, in that order."""
        taken = type(self).__new__(type(self))
        taken.__dict__.update(self.__dict__, _order=order)
        return taken

    def _record(self, i: int) -> Record:
        names = self._names[i]
        return Record(
            self._keys[i],
            self.sizes[i],
            self._stamps[i],
            self._numbers[i],
            tuple(names.split("\0")) if names else (),
        )

    def ordered_sizes(self) -> Iterator[int]:
        """The size of each record, in order."""
        return map(self.sizes.__getitem__, self._order)

    @property
    def last_stamp(self) -> int:
        """The largest stamp."""
        return max(self._stamps)

    def digests(self) -> tuple[str, str]:
        """Digests of all keys and sizes, and of all keys, sizes and stamps, in the source's order."""
        listing, state = hashlib.sha256(), hashlib.sha256()
        for key, size, stamp in zip(self._keys.encoded(), self.sizes, self._stamps, strict=True):
            listing.update(b"%b\0%d\0" % (key, size))
            state.update(b"%b\0%d\0%d\0" % (key, size, stamp))
        return listing.hexdigest(), state.hexdigest()

    def shuffled(self, seed: int) -> Records:
        """In a random order, which depends on the seed and the keys alone: not on the machine, nor on the
        source's order."""
        prefix = hashlib.sha256(str(seed).encode()).digest()
        words = bytearray()
        for key in self._keys.encoded():
            words += hashlib.sha256(prefix + key).digest()[:16]  # enough: no two are equal
        columns = np.frombuffer(words, ">u8").reshape(len(self), -1).T
        return self.take(np.lexsort(columns[::-1]))

    def find(self, key: str) -> int | None:
        """The number of the record `key` in the source; None: there is none."""
        hashes, order = self._hashes
        at = int(np.searchsorted(hashes, hash(key)))
        while at < len(order) and hashes[at] == hash(key):
            if self._keys[order[at]] == key:
                return int(order[at])
            at += 1
        return None

    def repeated_key(self) -> str | None:
        """A key that two records have; None: there is none."""
        hashes, order = self._hashes
        seen: set[str] = set()
        same = np.flatnonzero(hashes[1:] == hashes[:-1])
        for i in np.union1d(order[same], order[same + 1]):
            key = self._keys[i]
            if key in seen:
                return key
            seen.add(key)
        return None

    @cached_property
    def _hashes(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The keys' hashes, ascending, and the numbers of their records."""
        keys = (hash(key.decode(*TEXT)) for key in self._keys.encoded())
        hashes = np.fromiter(keys, np.int64, len(self.sizes))
        order = np.argsort(hashes)
        return hashes[order], order


class Texts:
    """Texts one after the other in one buffer."""

    def __init__(self) -> None:
        self._data, self._ends = bytearray(), array("q", [0])

    def append(self, text: str) -> None:
        """Adds one at the end."""
        self._data += text.encode(*TEXT)
        self._ends.append(len(self._data))

    def __getitem__(self, i: int) -> str:
        return self._data[self._ends[i] : self._ends[i + 1]].decode(*TEXT)

    def encoded(self) -> Iterator[bytes]:
        """All of them."""
        return (bytes(self._data[begin:end]) for begin, end in pairwise(self._ends))


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample that has been read.

    Attributes:
        key: the key of its record.
        extension: the extension of the image, without the dot.
        image: the bytes of the image file.
        label: the class; -1: none.
        fields: (extension, bytes) of each other member, in order.
    """

    key: str
    extension: str
    image: bytes
    label: int
    fields: tuple[tuple[str, bytes], ...] = ()


class Input(ABC):
    """A source of samples. `read` is called by several threads at once.

    Attributes:
        kind: the name shown to users: "ImageFolder", "WebDataset", …
        classes: names by label; empty: not known.
    """

    kind: str
    classes: tuple[str, ...] = ()

    @abstractmethod
    def records(self) -> Records:
        """All samples, in the source's order. Raises PackError."""

    @abstractmethod
    def read(self, record: Record) -> Sample:
        """One of them. Raises PackError where it can't be read, or isn't what `records` saw."""

    def notes(self) -> list[str]:
        """What a user should know of the source, once `records` was called."""
        return []

    def modified_ns(self, records: Records) -> int | None:
        """The time of the latest modification of `records`, in nanoseconds since 1970; None: not known."""
        return records.last_stamp


@dataclass(frozen=True)
class Plan:
    """The order of a pack.

    Attributes:
        records: all records, in the pack's order.
        bounds: [shards + 1]; shard i holds records[bounds[i] : bounds[i + 1]].
        listing: the digest of keys and sizes, in the source's order.
        state: the digest of keys, sizes and stamps.
        source_bytes: the size of all records, in bytes.
    """

    records: Records
    bounds: tuple[int, ...]
    listing: str
    state: str
    source_bytes: int

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    def of(self, shard: int) -> Records:
        """What a shard holds."""
        return self.records[self.bounds[shard] : self.bounds[shard + 1]]


def make_plan(records: Records, shard_size: int, shuffle: int | None) -> Plan:
    """Orders `records` and cuts them into shards of at most `shard_size` bytes of the source.

    Raises:
        PackError: there are none, or two have one key.
    """
    if not records:
        raise PackError("The source holds no images: nothing to pack.")
    if (key := records.repeated_key()) is not None:
        raise PackError(f"Two samples of the source have the key {key!r}: rename one of them.")
    listing, state = records.digests()
    if shuffle is not None:
        records = records.shuffled(shuffle)
    bounds, filled = [0], 0
    for i, size in enumerate(records.ordered_sizes()):
        if filled and filled + size > shard_size:
            bounds.append(i)
            filled = 0
        filled += size
    return Plan(records, (*bounds, len(records)), listing, state, sum(records.sizes))


Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int
) -> Generator[tuple[Item, Result], None, None]:
    """(item, function(item)) for each of `items` in turn; a bounded number of later ones are under way."""
    ahead = 2 * workers + 2
    started: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                started.append((item, pool.submit(function, item)))
                if len(started) > ahead:
                    first, future = started.popleft()
                    yield first, future.result()
            for first, future in started:
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
