"""Files that are whole or not there at all, and the folder for what Headrace keeps."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from headrace.errors import CacheError


@contextmanager
def whole_file(path: Path, *, contended: bool = False) -> Iterator[BinaryIO]:
    """A binary file to write, which gets the name `path` once it is complete and on the disk.

    Args:
        path: of the file; one that exists is replaced.
        contended: whether several processes may write `path` at a time: each then has a temporary file of its
            own. False (the default): a killed writer's temporary file is reused by the next one.

    Raises:
        OSError: the file can't be written. The temporary file is removed.
    """
    middle = f".{uuid.uuid4().hex}" if contended else ""
    partial = path.with_name(f"{path.name}{middle}.partial")
    try:
        with open(partial, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Puts the names of the files in a folder on the disk. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def cache_folder() -> Path:
    """Headrace's folder in the user's cache: for indexes of data that can't be written to, and for records of
    object stores.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def make_cache(folder: Path) -> Path:
    """Makes a folder of the user's cache if it is missing, and returns it. Raises CacheError if it can't be
    made or written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        cause = "" if os.access(folder, os.W_OK) else "Permission denied"
    except OSError as error:
        cause = error.strerror or str(error)
    if cause:
        raise CacheError(
            f"{folder}, in which copies and indexes are kept, can't be used: {cause}. Name a folder on a"
            " local, writable disk by the environment variable XDG_CACHE_HOME, or by cache_dir=… for a store."
        )
    return folder
