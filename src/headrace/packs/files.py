"""Files that are there whole or not at all, whatever happens to the process that writes them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headrace.errors import PackError, printable

# Of a system call that writes several: what POSIX and Linux allow.
MOST_PIECES = os.sysconf("SC_IOV_MAX")


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name once it is complete and on the disk.

    Raises:
        PackError: the disk is full, or it can't be written.
    """
    partial = path.with_name(path.name + ".partial")
    with naming(path), open(partial, "wb") as file:
        yield file
        finish(file, path)


def write_pieces(file: BinaryIO, pieces: Sequence[bytes]) -> None:
    """Writes all of `pieces`, past the file's own buffer: few system calls, and no copy."""
    left = [memoryview(piece) for piece in pieces if piece]
    while left:
        written = os.writev(file.fileno(), left[:MOST_PIECES])
        done = 0
        while done < len(left) and written >= len(left[done]):
            written -= len(left[done])
            done += 1
        del left[:done]
        if written:
            left[0] = left[0][written:]


def finish(file: BinaryIO, path: Path) -> None:
    """Puts what was written to `file` on the disk, and gives it its name."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(file.name, path)


def sync_folder(path: Path) -> None:
    """Puts the names of the files in a folder on the disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns what goes wrong in writing `path` into a PackError that names it; or names the source's file that
    couldn't be read meanwhile."""
    try:
        yield
    except PackError:
        raise
    except OSError as error:
        other = error.filename
        if isinstance(other, str) and not other.startswith(os.fspath(path)):
            raise PackError(f"{printable(other)} can't be read: {error.strerror or error}.") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PackError(
                f"{path} can't be written: the disk is full. Free some space and run it again: what is"
                " finished is kept."
            ) from error
        raise PackError(f"{path} can't be written: {error.strerror or error}.") from error
