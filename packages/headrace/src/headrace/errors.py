"""The errors that Headrace raises, each also the builtin that a caller would catch.

::

    HeadraceError(Exception)
    ├── ConfigError(ValueError)       an invalid argument
    ├── CacheError(OSError)            the cache of records on local disk can't be used
    │   └── DamagedError               a size or checksum mismatch
    ├── NativeError(RuntimeError)     the native library can't be loaded, or failed by itself
    ├── PackError(OSError)            a pack is damaged, incomplete, or not one
    ├── RemoteError(OSError)          an object of a store can't be read
    └── SampleError(OSError)          one sample can't be read or decoded

Every one of them can be made from a single message: torch re-raises an exception of a worker process as
``type(error)(message)``.
"""

from __future__ import annotations

import importlib
from typing import Any


class HeadraceError(Exception):
    """The root: ``except HeadraceError`` catches whatever Headrace itself raises."""


class ConfigError(HeadraceError, ValueError):
    """An invalid argument. The message names it, its value and what is allowed."""


class CacheError(HeadraceError, OSError):
    """The cache of records on local disk can't be used. The message names the file or folder."""


class DamagedError(CacheError):
    """Bytes given to the cache don't have the size or the checksum of their record.

    Attributes:
        keys: keys of the records to fetch again.
    """

    def __init__(self, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own reduction would lose the attributes on the way out of a worker process.
        return type(self), (self.args[0], self.keys)


class NativeError(HeadraceError, RuntimeError):
    """The native library can't be loaded, or failed for a reason that isn't a single sample's.

    Attributes:
        code: the library's own code of the error; 0 if it gave none.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class PackError(HeadraceError, OSError):
    """A pack is damaged, incomplete or not one, or can't be made. The message names the file."""


class RemoteError(HeadraceError, OSError):
    """An object of a store can't be read. The message names the URL, the bytes, the cause and the number of
    attempts."""


class SampleError(HeadraceError, OSError):
    """One sample can't be read or decoded. An OSError, as Pillow's own errors for bad files are.

    Attributes:
        index: index of the sample in the dataset; -1 if it isn't known.
        path: file of the sample, or None if it isn't known.
        cause: cause in a few words; empty if only the message is known.
    """

    def __init__(self, message: str, index: int = -1, path: str | None = None, cause: str = "") -> None:
        super().__init__(message)
        self.index = index
        self.path = path
        self.cause = cause

    @classmethod
    def at(cls, index: int, path: str | None, cause: str) -> SampleError:
        """The error for sample `index` of the dataset, worded for the user."""
        place = f"sample {index}" if path is None else f"sample {index} ({printable(path)})"
        message = (
            f"{place} can't be loaded: {cause}. Repair or remove it, or pass on_error='skip' or"
            " on_error='replace' to continue without it."
        )
        return cls(message, index, path, cause)

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError's own reduction would lose the attributes on the way out of a worker process.
        return type(self), (self.args[0], self.index, self.path, self.cause)


def require(module: str, extra: str) -> Any:
    """Imports an optional dependency where it is used.

    Raises:
        ConfigError: it isn't installed; the message names the extra of headrace that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise ConfigError(f"this needs the package {name}: pip install 'headrace[{extra}]'") from error


def printable(path: str) -> str:
    r"""`path` on one line, with undecodable bytes as ``\udcXX`` and what a terminal would obey as ``\x1b``:
    safe in any message, log or terminal.
    """
    if path.isprintable():
        return path
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in path)
