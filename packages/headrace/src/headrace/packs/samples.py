"""Samples on their way into a pack: what is listed, read and laid out in shards."""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from headrace._arrow import pa, pc
from headrace.errors import PackError
from headrace.sources.pack_index import rows_batch

# Called with (samples done, samples in all), now and then.
ProgressCallback = Callable[[int, int], None]

Task = TypeVar("Task")
Result = TypeVar("Result")

JPEG_START = b"\xff\xd8\xff"

# What Pillow raises for files that it can't open or decode.
PILLOW_ERRORS = (OSError, ValueError, SyntaxError, EOFError, struct.error, Image.DecompressionBombError)

# Larger sizes (of a damaged index), and times of modification, of the year 2262, are taken for this.
MOST = (1 << 63) - 1

# Items that are Python objects at a time.
CHUNK = 1 << 14

COLUMNS = pa.schema(
    [
        ("key", pa.large_string()),
        ("size", pa.int64()),
        ("stamp", pa.int64()),
        ("number", pa.int64()),
        ("names", pa.large_binary()),  # joined by zero bytes: names of files may hold bytes that aren't text
    ]
)
_TEXT = "utf-8", "surrogateescape"


class Item(NamedTuple):
    """A sample that hasn't been read yet.

    Attributes:
        key: a name that is unique in the source; ImageFolder: the path below the root, without extension.
        size: the size of its image and other fields in the source, in bytes.
        stamp: a number that differs if the source has changed, as a file's time of modification in
            nanoseconds.
        number, names: what the input needs to read it, such as a label and paths.
    """

    key: str
    size: int
    stamp: int
    number: int
    names: tuple[str, ...] = ()


class Listing:
    """The samples of a source as an Arrow table: an item of ImageNet takes 110 bytes, as an object 500."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @classmethod
    def of(cls, items: Iterable[Item]) -> Listing:
        """Makes the table of `items`, some at a time."""
        rows, batches = map(_row, items), []
        while part := list(islice(rows, CHUNK)):
            batches.append(rows_batch(part, COLUMNS))
        return cls(pa.Table.from_batches(batches, COLUMNS))

    def __len__(self) -> int:
        rows: int = self.table.num_rows
        return rows

    def __iter__(self) -> Iterator[Item]:
        for key, size, stamp, number, names in self.rows(*COLUMNS.names):
            yield Item(key, size, stamp, number, tuple(names.decode(*_TEXT).split("\0")) if names else ())

    def __getitem__(self, part: slice) -> Listing:
        """Some items, whose memory is shared."""
        start, stop, _ = part.indices(len(self))
        return Listing(self.table.slice(start, stop - start))

    def __reduce__(self) -> tuple[Any, ...]:
        return Listing.of, (list(self),)  # pyarrow would send all of the memory that a part shares

    def rows(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yields some columns of each item."""
        for batch in self.table.select(columns).to_batches(CHUNK):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def sizes(self) -> Iterator[int]:
        """Yields the size of each item, in bytes."""
        return (size for (size,) in self.rows("size"))

    def shuffled(self, seed: int) -> Listing:
        """A random order, which depends on the seed and the keys alone: not on the machine, nor on the
        source's order."""
        prefix = hashlib.sha256(str(seed).encode()).digest()
        words = bytearray()
        for (key,) in self.rows("key"):
            words += hashlib.sha256(prefix + key.encode()).digest()[:16]  # enough: no two are equal
        columns = np.frombuffer(words, ">u8").reshape(len(self), -1).T
        return self.take(np.lexsort(columns[::-1]))

    def take(self, numbers: Any) -> Listing:
        """The items of these numbers, in that order."""
        return Listing(self.table.take(numbers))

    def repeated_key(self) -> str | None:
        """A key that two items have, or None if there is none."""
        # By their hashes: 16 bytes for each; a set of the keys would take 100.
        hashes = np.fromiter((hash(key) for (key,) in self.rows("key")), np.int64, len(self))
        order = np.argsort(hashes)
        same = np.flatnonzero(np.diff(hashes[order]) == 0)
        doubtful = self.take(np.union1d(order[same], order[same + 1]))
        counts = Counter(key for (key,) in doubtful.rows("key"))
        return next((key for key, count in counts.items() if count > 1), None)


def _row(item: Item) -> tuple[Any, ...]:
    names = "\0".join(item.names).encode(*_TEXT)
    return item.key, min(item.size, MOST), min(item.stamp, MOST), item.number, names


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample that has been read.

    Attributes:
        key: a name that is unique in the source.
        extension: the extension of the image, without the dot.
        image: the bytes of the image file.
        label: the class, or -1 if there is none.
        fields: (extension, bytes) of each other member, in order.
    """

    key: str
    extension: str
    image: bytes
    label: int
    fields: tuple[tuple[str, bytes], ...] = ()


class Input(ABC):
    """A source of samples. Several threads call `read` at once.

    Attributes:
        kind: the name shown to users: "ImageFolder", "WebDataset", …
        classes: names by label; empty if they are not known.
    """

    kind: str
    classes: tuple[str, ...] = ()

    @abstractmethod
    def items(self) -> Listing:
        """Lists all samples, in the source's order. Raises PackError."""

    @abstractmethod
    def read(self, item: Item) -> Sample:
        """Reads one of them. Raises PackError if it can't be read, or isn't what `items` saw."""

    def notes(self) -> list[str]:
        """Returns what a user should know of the source, once `items` was called."""
        return []

    def modified_ns(self, items: Listing) -> int | None:
        """The time of the latest modification of `items`, in nanoseconds since 1970, or None if it isn't
        known."""
        return int(pc.max(items.table["stamp"]).as_py())


@dataclass(frozen=True)
class Layout:
    """The order of a pack.

    Attributes:
        items: all items, in the pack's order.
        bounds: [shards + 1]; shard i holds items[bounds[i] : bounds[i + 1]].
        names_digest: a digest of keys and sizes, in the source's order.
        state: a digest of keys, sizes and stamps.
        source_bytes: the size of all items, in bytes.
    """

    items: Listing
    bounds: tuple[int, ...]
    names_digest: str
    state: str
    source_bytes: int

    @property
    def shards(self) -> int:
        """The number of shards."""
        return len(self.bounds) - 1

    def of(self, shard: int) -> Listing:
        """The items of a shard."""
        return self.items[self.bounds[shard] : self.bounds[shard + 1]]


def make_layout(items: Listing, shard_size: int, shuffle: int | None) -> Layout:
    """Orders `items` and cuts them into shards of at most `shard_size` bytes of the source. Raises PackError
    if there are none, or two have one key."""
    if not items:
        raise PackError("The source holds no images: nothing to pack.")
    if (key := items.repeated_key()) is not None:
        raise PackError(f"Two samples of the source have the key {key!r}: rename one of them.")
    names, state, total = hashlib.sha256(), hashlib.sha256(), 0
    for key, size, stamp in items.rows("key", "size", "stamp"):
        total += size
        names.update(b"%b\0%d\0" % (key.encode(), size))
        state.update(b"%b\0%d\0%d\0" % (key.encode(), size, stamp))
    if shuffle is not None:
        items = items.shuffled(shuffle)
    bounds, filled = [0], 0
    for i, size in enumerate(items.sizes()):
        if filled and filled + size > shard_size:
            bounds.append(i)
            filled = 0
        filled += size
    return Layout(items, (*bounds, len(items)), names.hexdigest(), state.hexdigest(), total)


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Generator[tuple[Task, Result], None, None]:
    """Yields (task, function(task)) for each of `tasks` in turn; a bounded number of later ones are under
    way."""
    ahead = 2 * workers + 2
    started: deque[tuple[Task, Future[Result]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for task in tasks:
                started.append((task, pool.submit(function, task)))
                if len(started) > ahead:
                    first, future = started.popleft()
                    yield first, future.result()
            for first, future in started:
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
