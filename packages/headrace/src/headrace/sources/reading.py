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


def read_part(path: PathLike, offset: int, size: int) -> bytes:
    """The `size` bytes from `offset` on, or those of them that the file has. Raises OSError, which names it.

    Memory is allocated only for what the file has, however large `size` is.
    """
    with named(path), open_regular(path) as file:
        there = os.fstat(file.fileno()).st_size - offset
        if there <= 0:
            return b""
        file.seek(offset)
        return file.read(min(size, there))


@contextmanager
def named(path: PathLike) -> Iterator[None]:
    """An OSError of the system's within this names `path`: those of reading name nothing by themselves."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = os.fspath(path)
        raise


def _opened(path: str, flags: int) -> int:
    handle = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # the builtin refuses folders
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "It is a pipe, socket or device, not a file", path)
