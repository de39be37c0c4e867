"""The files of records: one each, named by a number that no other record ever has."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress

from headrace.errors import CacheError

BLOCK = 4096
FOLDERS = 256
# Disk full, quota used up, file larger than the process may write.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Bytes = bytes | bytearray | memoryview


def room(size: int) -> int:
    """Bytes that a file of `size` bytes takes on disk, in whole blocks; one at least."""
    return max(1, -(-size // BLOCK)) * BLOCK


def path_of(root: str, number: int) -> str:
    """Of record `number`."""
    return f"{root}/{number % FOLDERS:02x}/{number:x}"


def write(path: str, data: Bytes) -> bool:
    """A new file; False, and none, where the disk is full.

    Raises:
        CacheError: it can't be written for another reason, or there is a file already.
    """
    try:
        try:
            descriptor = _create(path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            descriptor = _create(path)
    except OSError as error:
        return _not_written(path, error)
    try:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        os.unlink(path)
        return _not_written(path, error)
    finally:
        os.close(descriptor)
    return True


def _create(path: str) -> int:
    # Exclusive: a file that is there isn't ours.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def _not_written(path: str, error: OSError) -> bool:
    if error.errno in FULL:
        return False
    raise CacheError(f"The cache can't write {path}: {error.strerror}.") from error


def remove(path: str) -> None:
    """The file, where it is there.

    Raises:
        CacheError: it can't be removed.
    """
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise CacheError(f"The cache can't remove its file {path}: {error.strerror}.") from error


def numbers_there(root: str) -> Iterator[int]:
    """Those of the records that have a file, whole or not."""
    for folder in range(FOLDERS):
        try:
            names = os.listdir(f"{root}/{folder:02x}")
        except FileNotFoundError:
            continue
        for name in names:
            with suppress(ValueError):
                number = int(name, 16)
                if number > 0 and path_of(root, number) == f"{root}/{folder:02x}/{name}":
                    yield number


def has_size(path: str, size: int) -> bool:
    """Whether the file is there, with `size` bytes."""
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False


def has_checksum(path: str, checksum: int | None) -> bool:
    """Whether the file is there, and its bytes have the CRC-32 `checksum`."""
    try:
        with open(path, "rb", buffering=0) as file:
            return zlib.crc32(file.read()) == checksum
    except OSError:
        return False
