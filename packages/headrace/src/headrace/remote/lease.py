"""Bytes that samples are made of: which of them one request brings, and what holds them for a batch."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace.errors import RemoteError

# Between a sample's image and the next one's lie the headers of tar and a label: never worth a request.
LEAST_GAP = 4096
# Of what a range brings, the part that may be dropped, as a fraction of 1 / WASTE.
WASTE = 16


@dataclass(frozen=True)
class Range:
    """Bytes `start` to `stop` - 1 of the object `name`; `parts` are the positions of the reads in them."""

    name: str
    start: int
    stop: int
    parts: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.stop - self.start


def coalesce(reads: Sequence[tuple[str, int, int]], gap: int, most: int) -> list[Range]:
    """`reads`, (name, start, size) each, as ranges: a read joins the one before it where few bytes lie
    between (`gap` at most, and few compared with those that are wanted; LEAST_GAP always) and the whole stays
    within `most` bytes. In order of the first read that each one serves.
    """
    ranges: list[Range] = []
    by_place = sorted(range(len(reads)), key=lambda i: reads[i])
    for i in by_place:
        name, start, size = reads[i]
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and last.name == name
            and start - last.stop <= max(LEAST_GAP, min(gap, (last.nbytes + size) // WASTE))
            and max(last.stop, start + size) - last.start <= most
        ):
            ranges[-1] = Range(name, last.start, max(last.stop, start + size), (*last.parts, i))
        else:
            ranges.append(Range(name, start, start + size, (i,)))
    return sorted(ranges, key=lambda each: min(each.parts))


if TYPE_CHECKING:
    from headrace.cache import Record

# Where the files are that `os.memfd_create` gives: other code opens them by path.
MEMORY = "/proc/self/fd/"
# Assumed bytes of an image until its size is known.
GUESS = 256 << 10
# How long to sleep before Python gets a chance to see Ctrl-C, in seconds.
WAIT_SLICE = 0.1


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bytes that a sample is made of.

    Attributes:
        url: the URL of the object.
        start, size: the place of the bytes in the object; size None: the whole object, however long it is.
        record: the cache's name for them; None until the object's size and version are known.
        version: the version that the object must have; None: any.
    """

    url: str
    start: int
    size: int | None
    record: Record | None
    version: str | None = None


class Lease:
    """Records that were requested together, in order. Fields are complete once `wait` has returned True.

    Attributes:
        wanted: [n].
        urgent: whether somebody waits, so that the cache is bypassed where it is full.
        paths: [n]; files that hold just the record; None: it failed.
        errors: by position; why it failed.
        error: why all of it failed; None: it didn't.
        mine: positions that the cache waits for.
    """

    def __init__(self, wanted: Sequence[Wanted], *, urgent: bool) -> None:
        self.wanted = list(wanted)
        self.urgent = urgent
        self.pid = os.getpid()
        self.paths: list[str | None] = [None] * len(self.wanted)
        self.errors: dict[int, RemoteError] = {}
        self.error: BaseException | None = None
        self.task: asyncio.Task[None] | None = None
        self.end: Callable[[Lease], None] | None = None
        self.mine: set[int] = set()
        self._memory: dict[int, int] = {}
        self._done = threading.Event()

    def __len__(self) -> int:
        return len(self.wanted)

    def wait(self, seconds: float) -> bool:
        """Whether everything is there or has failed, at most so many seconds from now."""
        return self._done.wait(seconds) if not self._done.is_set() else True

    def arrived(self) -> Lease:
        """This, once everything is there or has failed. Raises what kept all of it from it, or Ctrl-C; then
        it is released."""
        try:
            while not self.wait(WAIT_SLICE):
                pass
            if self.error is not None:
                raise self.error
        except BaseException:
            self.release()
            raise
        return self

    def finished(self) -> None:
        """To be called once by whoever fetches."""
        self._done.set()

    @cached_property
    def nbytes(self) -> int:
        """Of all records; where their size wasn't known from the beginning, about."""
        return sum(GUESS if each.size is None else each.size for each in self.wanted)

    def keep_in_memory(self, i: int, data: memoryview) -> None:
        """Holds record `i` in memory, outside the cache, until the release."""
        self._memory[i] = fd = os.memfd_create("headrace-record")
        while len(data):
            data = data[os.write(fd, data) :]
        self.paths[i] = f"{MEMORY}{fd}"

    def release(self) -> None:
        """Gives back what is held and stops what is under way; does nothing the second time, or in a forked
        child."""
        end, self.end = self.end, None
        if end is not None and self.pid == os.getpid():
            end(self)

    def forget_memory(self) -> None:
        """Drops what isn't in the cache."""
        for fd in self._memory.values():
            os.close(fd)
        self._memory.clear()

    def files(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        """The paths as `headrace._native.ffi.Source` takes them; of what failed, an empty one."""
        encoded = [b"" if path is None else os.fsencode(path) for path in self.paths]
        ends = np.cumsum([len(path) + 1 for path in encoded], dtype=np.uint64)
        offsets = np.concatenate((np.zeros(1, np.uint64), ends))
        return np.frombuffer(b"\0".join(encoded) + b"\0", np.uint8), offsets

    def sizes(self) -> npt.NDArray[np.uint64]:
        """[n]; in bytes."""
        return np.array([each.size or 0 for each in self.wanted], np.uint64)
