"""The files of the cache's folder.

::

    lock                      held by whoever changes anything; holds the sums below
    clients/PID-TOKEN         locked by a client as long as it lives
    datasets/DIGEST/          locked, shared, by each client that uses records of the dataset
        ab/DIGEST-SIZE        a record, and its checksum if the record itself has none
        ab/DIGEST-SIZE.claim  the file of the client that fetches the record, by another name
        ab/DIGEST-SIZE.part   what that client has written so far

The kernel lets go of all locks when a process dies. After a death, the sums may count what isn't there, never
less than is there; the next process that uses the folder alone counts again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

from headrace.errors import CacheError
from headrace.sources.stores.cache.records import Record

BLOCK = 4096
# How long a process waits for the lock, and the first and the longest pause between two attempts, in seconds.
BUSY_SECONDS = 60.0
LOCK_PAUSES = 0.0001, 0.002
VERSION = 2
HEADER = struct.Struct("<QQQQ")
CHECKSUM = struct.Struct("<I")
# Disk full, quota used up, file larger than the process may write.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NAME = re.compile(r"[0-9a-f]{32}-([0-9]+)")
CLAIM, PART = ".claim", ".part"
PARTIAL, ALL = (CLAIM, PART), (CLAIM, PART, "")

Bytes = bytes | bytearray | memoryview


def digest(text: str) -> str:
    """32 hexadecimal digits that stand for `text`."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def stored_size(record: Record) -> int:
    """Bytes of the record's file."""
    return record.size + (CHECKSUM.size if record.checksum is None else 0)


def room(size: int) -> int:
    """Bytes that a file of `size` bytes takes on disk, in whole blocks; one at least."""
    return max(1, -(-size // BLOCK)) * BLOCK


def room_of(record: Record) -> int:
    """Bytes that the record's file takes on disk."""
    return room(stored_size(record))


def path_of(folder: str, record: Record) -> str:
    """The record's file in the folder of its dataset."""
    name = digest(record.key)
    return f"{folder}/{name[:2]}/{name}-{stored_size(record)}"


class Ledger:
    """The lock of a cache, and the sums of `CacheStats` that it guards, which are current while locked."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.capacity = self.bytes = self.records = 0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes all other clients of the node wait. Raises CacheError if another process has held the lock
        for `BUSY_SECONDS`, the folder was deleted, or the sums can't be read."""
        deadline, pause = time.monotonic() + BUSY_SECONDS, LOCK_PAUSES[0]
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CacheError(
                        f"The cache's lock {self._path} has been held for {BUSY_SECONDS:g} s by another"
                        " process. Is one of those that use the cache stopped?"
                    ) from None
            time.sleep(pause)
            pause = min(2 * pause, LOCK_PAUSES[1])
        try:
            self._read()
            yield
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def change(self, nbytes: int, records: int) -> None:
        """Adds to the sums, at once: a process may be killed at any moment."""
        self.write(self.capacity, self.bytes + nbytes, self.records + records)

    def write(self, capacity: int, nbytes: int, records: int) -> None:
        """Sets the sums."""
        self.capacity, self.bytes, self.records = capacity, max(0, nbytes), max(0, records)
        os.pwrite(self.descriptor, HEADER.pack(VERSION, capacity, self.bytes, self.records), 0)

    def _read(self) -> None:
        try:
            present = os.path.samestat(os.fstat(self.descriptor), os.stat(self._path))
        except FileNotFoundError:
            present = False
        if not present:
            raise CacheError(
                f"The cache's folder {self._path.parent} was deleted while it was in use. Start the process"
                " again, and delete the folder only while no process uses it."
            )
        header = os.pread(self.descriptor, HEADER.size, 0)
        if not header:
            return
        version = HEADER.unpack(header)[0] if len(header) == HEADER.size else 0
        if version != VERSION:
            raise CacheError(
                f"{self._path} isn't of this version of Headrace, or is damaged. Stop the processes that use"
                f" {self._path.parent} and delete it: it holds nothing but copies."
            )
        _, self.capacity, self.bytes, self.records = HEADER.unpack(header)


def lock(path: str, kind: int) -> int | None:
    """A descriptor of the file or folder at `path`, which stays locked until it is closed, or None if it is
    missing or, with LOCK_NB, if another client holds a lock that excludes this one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, kind)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def is_held(path: str) -> bool:
    """Returns whether a client that lives, this or another one, has locked the file for itself."""
    descriptor = lock(path, fcntl.LOCK_SH | fcntl.LOCK_NB)
    if descriptor is None:
        return os.path.exists(path)
    os.close(descriptor)
    return False


def records_in(dataset: str) -> Iterator[tuple[str, int]]:
    """(path, bytes on disk) of each record in the folder of a dataset, and of each that is being fetched.
    Folders that are found empty are removed; files that aren't the cache's are passed over."""
    for part in os.listdir(dataset) if os.path.isdir(dataset) else ():
        folder = f"{dataset}/{part}"
        with suppress(NotADirectoryError):
            names = {name.removesuffix(CLAIM).removesuffix(PART) for name in os.listdir(folder)}
            for name in sorted(names):
                match = NAME.fullmatch(name)
                if match:
                    yield f"{folder}/{name}", room(int(match[1]))
        with suppress(OSError):
            os.rmdir(folder)
    with suppress(OSError):
        os.rmdir(dataset)


def remove(path: str, *suffixes: str) -> None:
    """Removes the files of a record that have the given suffixes."""
    for suffix in suffixes:
        with suppress(FileNotFoundError):
            os.unlink(path + suffix)


def write(path: str, record: Record, data: Bytes, checksum: int) -> bool:
    """Writes the file of a record and ends its claim. Returns False if the disk is full; then the claim, and
    what was written, remain."""
    partial = path + PART
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            trailer = CHECKSUM.pack(checksum) if record.checksum is None else b""
            for content in (data, trailer):
                view = memoryview(content).cast("B")
                while view:
                    view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        os.replace(partial, path)
        remove(path, CLAIM)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return False
    return True


def is_whole(path: str, record: Record) -> bool:
    """Returns whether the file's bytes have the right checksum."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = memoryview(file.read())
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # this says nothing about the file
        return False
    if len(data) != stored_size(record):
        return False
    (checksum,) = CHECKSUM.unpack(data[record.size :]) if record.checksum is None else (record.checksum,)
    return bool(zlib.crc32(data[: record.size]) == checksum)
