"""Bytes that samples are made of: which of them one request brings, and what holds them for a batch."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
import numpy.typing as npt

from headrace.errors import RemoteError
from headrace.sources.stores.cache import Record

# Between a sample's image and the next one's lie the headers of tar and a label: never worth a request.
LEAST_GAP = 4096
# Bytes between two records that are read and dropped: at most so many, and this part of what a range brings.
MOST_GAP, WASTE = 256 << 10, 16
# A range is as long as this at most, but for a record that is longer: several are under way at a time.
MOST_BYTES = 4 << 20

# Where the file is that `os.memfd_create` gives: other code opens it by path.
MEMORY = "/proc/self/fd/"
# How long to sleep before Python gets a chance to see Ctrl-C, in seconds.
WAIT_SLICE = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes that a sample is made of.

    Attributes:
        url: the URL of the object.
        start, size: the place of the bytes in the object; size is None for the whole object.
        record: the cache's name for them, or None until the object's size and version are known.
        version: the version that the object must have, or None if these bytes are recognized otherwise.
    """

    url: str
    start: int
    size: int | None
    record: Record | None
    version: str | None = None

    @property
    def stop(self) -> int:
        """One past the last byte."""
        return self.start + (self.size or 0)


@dataclass(frozen=True)
class Range:
    """Bytes `start` to `stop` - 1 of an object, and the positions in a lease of the records in them."""

    url: str
    start: int
    stop: int
    positions: tuple[int, ...]


def coalesce(wanted: Sequence[Wanted], positions: Sequence[int]) -> list[Range]:
    """Ranges that hold the records at `positions`, in the order of the first record of each. A record joins
    the one before it if few bytes lie between.
    """
    ranges: list[Range] = []
    for i in sorted(positions, key=lambda i: (wanted[i].url, wanted[i].start)):
        url, start, stop = wanted[i].url, wanted[i].start, wanted[i].stop
        last = ranges[-1] if ranges else None
        if last is not None and last.url == url:
            gap = min(MOST_GAP, (last.stop - last.start + stop - start) // WASTE)
            end = max(last.stop, stop)
            if start - last.stop <= max(LEAST_GAP, gap) and end - last.start <= MOST_BYTES:
                ranges[-1] = Range(url, last.start, end, (*last.positions, i))
                continue
        ranges.append(Range(url, start, stop, (i,)))
    return sorted(ranges, key=lambda each: min(each.positions))


class Lease:
    """Records that were requested together, in order. Fields are complete once `wait` has returned True.

    Attributes:
        wanted: [n].
        nbytes: the bytes of all records, or `guess` for each whose size wasn't known from the beginning.
        paths: [n]; files that hold the records, or None if they failed.
        begins: [n]; the first byte of each record in its file.
        errors: why a record failed, by position.
        error: why all of it failed, or None.
        claimed: positions that the cache waits for.
        released: whether nobody needs it any more.
    """

    def __init__(self, wanted: Sequence[Wanted], guess: int) -> None:
        self.wanted = list(wanted)
        self.nbytes = sum(guess if each.size is None else each.size for each in self.wanted)
        self.pid = os.getpid()
        self.paths: list[str | None] = [None] * len(self.wanted)
        self.begins = [0] * len(self.wanted)
        self.errors: dict[int, RemoteError] = {}
        self.error: BaseException | None = None
        self.claimed: set[int] = set()
        self.released = False
        self.lock = threading.RLock()
        self._parts = 0  # of the work that isn't done
        self._memory: int | None = None  # descriptor of the records that aren't in the cache
        self._finished = False
        self._news: SimpleQueue[None] = SimpleQueue()  # an Event's lock may stay held after Ctrl-C

    def __len__(self) -> int:
        return len(self.wanted)

    def begin_part(self) -> None:
        """Counts a part of the work before it starts. Whoever does another part, or the first, calls it."""
        with self.lock:
            self._parts += 1

    def end_part(self) -> bool:
        """Ends a part of the work. Returns whether it was the last."""
        with self.lock:
            self._parts -= 1
            return self._parts == 0

    def finish(self) -> None:
        """Marks the work as done. It is called once, after all work."""
        self._finished = True
        self._news.put(None)

    def wait(self, seconds: float) -> bool:
        """Returns whether everything is there or has failed, at most so many seconds from now."""
        if not self._finished:
            with suppress(Empty):
                self._news.get(timeout=seconds)
        return self._finished

    def arrived(self) -> Lease:
        """This, once everything is there or has failed. Raises why all of it failed, or Ctrl-C; then it is
        released."""
        try:
            while not self.wait(WAIT_SLICE):
                pass
            if self.error is not None:
                raise self.error
        except BaseException:
            self.release()
            raise
        return self

    def record(self, i: int) -> Record:
        """The record at position `i`, whose size is known."""
        record = self.wanted[i].record
        assert record is not None
        return record

    def keep_in_memory(self, i: int, data: memoryview) -> None:
        """Holds a record in memory, outside the cache, until the release."""
        with self.lock:
            if self.released:
                return
            if self._memory is None:
                self._memory = os.memfd_create("headrace-records")
            self.begins[i] = os.lseek(self._memory, 0, os.SEEK_CUR)
            while len(data):
                data = data[os.write(self._memory, data) :]
            self.paths[i] = f"{MEMORY}{self._memory}"

    def read(self, i: int) -> bytes:
        """Reads a record. Raises RemoteError."""
        path, size = self.paths[i], self.wanted[i].size
        if path is None:
            raise self.errors[i]
        with open(path, "rb") as file:
            file.seek(self.begins[i])
            return file.read(size)

    def release(self) -> None:
        """Gives back what is held, and stops what isn't under way yet. Does nothing in a forked child."""
        if self.pid != os.getpid():
            return
        with self.lock:
            self.released = True
            memory, self._memory = self._memory, None
            if memory is not None:
                os.close(memory)

    def files(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        """The paths as `headrace._native.ffi.Source` takes them; that of a record that failed is empty."""
        encoded = [b"" if path is None else os.fsencode(path) for path in self.paths]
        offsets = np.cumsum([0, *(len(path) + 1 for path in encoded)], dtype=np.uint64)
        return np.frombuffer(b"\0".join(encoded) + b"\0", np.uint8), offsets

    def sizes(self) -> npt.NDArray[np.uint64]:
        """[n]; in bytes."""
        return np.array([each.size or 0 for each in self.wanted], np.uint64)
