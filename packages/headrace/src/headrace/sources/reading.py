"""Files of data, opened and read so that what is none of them can't hang or fill the memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from PIL import Image

from headrace.records import Mode

PathLike = str | bytes | os.PathLike[str]


def open_regular(path: PathLike) -> BinaryIO:
    """`path` for reading. Raises OSError as the builtin does, and for a pipe, socket or device, at which the
    builtin would wait for ever."""
    return open(path, "rb", opener=_opened)


def load_file(file: BinaryIO, mode: Mode = "RGB") -> Image.Image:
    """The image in `file`, which is closed, in `mode`: as torchvision's `pil_loader` reads it (EXIF rotation
    ignored)."""
    with file:
        return Image.open(file).convert(mode)


def read_part(path: PathLike, offset: int = 0, size: int | None = None) -> bytes:
    """The `size` bytes from `offset` on, or those of them that the file has; all of them if `size` is None.

    Memory is allocated only for what the file has, however large `size` is. It makes half the system calls
    that `open` makes, of which each lets other threads run. An OSError names the file.
    """
    with named(path):
        handle = _opened(os.fspath(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            there = max(0, os.fstat(handle).st_size - offset)
            wanted = there if size is None else min(size, there)
            data = os.pread(handle, wanted, offset) if wanted else b""
            while len(data) < wanted and (more := os.pread(handle, wanted - len(data), offset + len(data))):
                data += more
            return data
        finally:
            os.close(handle)


@contextmanager
def named(path: PathLike) -> Iterator[None]:
    """An OSError of the system's within this names `path`: those of reading name nothing by themselves."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def _opened(path: str | bytes, flags: int) -> int:
    handle = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # the builtin refuses folders
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "It is a pipe, socket or device, not a file", path)
