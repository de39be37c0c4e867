"""What is packed, in which order, into which shards: decided before the first byte is written."""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image

from headrace.errors import PackError

JPEG_START = b"\xff\xd8\xff"

# What Pillow raises for files that it can't open or decode.
PILLOW_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)

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
        place: what the input needs to read it.
    """

    key: str
    size: int
    stamp: int
    place: Any


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
    def records(self) -> list[Record]:
        """All samples, in the source's order. Raises PackError."""

    @abstractmethod
    def read(self, record: Record) -> Sample:
        """One of them. Raises PackError where it can't be read, or isn't what `records` saw."""

    def notes(self) -> list[str]:
        """What a user should know of the source, once `records` was called."""
        return []

    def modified_ns(self, records: Sequence[Record]) -> int | None:
        """The time of the latest modification of `records`, in nanoseconds since 1970; None: not known."""
        return max(record.stamp for record in records)


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

    records: Sequence[Record]
    bounds: tuple[int, ...]
    listing: str
    state: str
    source_bytes: int

    @property
    def shards(self) -> int:
        """How many there are."""
        return len(self.bounds) - 1

    def of(self, shard: int) -> Sequence[Record]:
        """What a shard holds."""
        return self.records[self.bounds[shard] : self.bounds[shard + 1]]


def make_plan(records: list[Record], shard_size: int, shuffle: int | None) -> Plan:
    """Orders `records` and cuts them into shards of at most `shard_size` bytes of the source.

    A shuffled order depends on the seed and the keys alone: not on the machine, nor on the source's order.

    Raises:
        PackError: there are none, or two have one key.
    """
    if not records:
        raise PackError("The source holds no images: nothing to pack.")
    _check_unique(records)
    listing, state = hashlib.sha256(), hashlib.sha256()
    for record in records:
        listing.update(f"{record.key}\0{record.size}\0".encode())
        state.update(f"{record.key}\0{record.size}\0{record.stamp}\0".encode())
    if shuffle is not None:
        seed = hashlib.sha256(str(shuffle).encode()).digest()
        records = sorted(records, key=lambda record: hashlib.sha256(seed + record.key.encode()).digest())
    bounds, filled = [0], 0
    for i, record in enumerate(records):
        if filled and filled + record.size > shard_size:
            bounds.append(i)
            filled = 0
        filled += record.size
    total = sum(record.size for record in records)
    return Plan(records, (*bounds, len(records)), listing.hexdigest(), state.hexdigest(), total)


def _check_unique(records: list[Record]) -> None:
    seen: set[str] = set()
    for record in records:
        if record.key in seen:
            raise PackError(f"Two samples of the source have the key {record.key!r}: rename one of them.")
        seen.add(record.key)


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
