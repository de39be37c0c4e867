"""Where the values of an LMDB lie in its file: they are whole there, and mapped into memory as they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import PackError

# Bytes of a value that are read back, to see that it lies where the index will say.
_SEEN = 64


def value_places(path: Path, transaction: Any, keys: Sequence[bytes]) -> npt.NDArray[np.uint64]:
    """The byte of the file `path` at which the value of each of `keys` begins.

    Args:
        transaction: on that file, with buffers=True.

    Raises:
        PackError: a value isn't found there.
    """
    begins = np.empty(len(keys), np.uint64)
    with open(path, "rb") as file:
        base = _mapped_at(os.fstat(file.fileno()).st_ino)
        for i, key in enumerate(keys):
            mapped = np.frombuffer(transaction.get(key), np.uint8)
            begins[i] = begin = mapped.ctypes.data - base
            if os.pread(file.fileno(), _SEEN, begin)[: len(mapped)] != mapped[:_SEEN].tobytes():
                raise PackError(f"{path}: the value of {key!r} doesn't lie at byte {begin} of the file.")
    return begins


def _mapped_at(inode: int) -> int:
    """The address at which the file with this number is mapped."""
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, _, offset, _, number = line.split(maxsplit=5)[:5]
            if int(number) == inode and int(offset, 16) == 0:
                return int(span.partition("-")[0], 16)
    raise PackError("The LMDB isn't mapped into memory: its values' places in the file can't be told.")
