"""Image files on a disk as samples: read, and looked at."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from headrace.errors import PackError, printable
from headrace.packs.records import Record, Sample


def file_record(root: str, key: str, label: int, paths: Sequence[str]) -> Record:
    """The record of an image and the fields beside it, all below `root`. Raises PackError."""
    infos = []
    for path in paths:
        try:
            info = os.stat(os.path.join(root, path))
        except OSError as error:
            raise PackError(
                f"{printable(os.path.join(root, path))} can't be read: {error.strerror}."
            ) from error
        if not stat.S_ISREG(info.st_mode):
            raise PackError(f"{printable(os.path.join(root, path))} is a pipe, socket, device or folder.")
        infos.append(info)
    size, stamp = sum(info.st_size for info in infos), max(info.st_mtime_ns for info in infos)
    return Record(as_text(key), size, stamp, (label, *paths))


def read_record(root: str, record: Record) -> Sample:
    """What `file_record` described. Raises PackError where it can't be read or has changed."""
    label, image, *others = record.place
    data = _read(os.path.join(root, image), record.size)
    fields = tuple(
        (as_text(extension_of(name)), _read(os.path.join(root, name), record.size)) for name in others
    )
    if len(data) + sum(len(field) for _, field in fields) != record.size:
        raise PackError(
            f"{printable(os.path.join(root, image))} has changed while it was packed: run it again."
        )
    return Sample(record.key, as_text(extension_of(image)), data, label, fields)


def stem_of(name: str) -> str:
    """`name` without its extension; all of it where nothing would be left."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + (base.rpartition(".")[0] or base)


def extension_of(name: str) -> str:
    """What follows the last dot of the file's name."""
    _, dot, extension = name.rpartition("/")[2].rpartition(".")
    return extension if dot else ""


def as_text(name: str) -> str:
    """A file's name as text; bytes that aren't UTF-8 become ``\\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _read(path: str, most: int) -> bytes:
    """The file, which has `most` bytes at most; one more where it has more.

    By system calls alone, of which each lets other threads run: `open` makes twice as many.
    """
    try:
        # O_NONBLOCK: a pipe must not be waited for; regular files ignore it.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.read(handle, most + 1)
            while len(data) < most and (more := os.read(handle, most + 1 - len(data))):
                data += more
            return data
        finally:
            os.close(handle)
    except OSError as error:
        raise PackError(f"{printable(path)} can't be read: {error.strerror}.") from error
