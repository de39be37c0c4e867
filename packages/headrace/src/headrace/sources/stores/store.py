"""A folder of a store, as a batch job uses it: objects are listed, read, written and removed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from headrace.errors import RemoteError
from headrace.sources.stores.client import CLIENT, Reader, open_store, store_and_name, store_arguments
from headrace.sources.stores.failures import explained
from headrace.sources.stores.threads import requests

# For requests that write: a part of a shard on a slow line.
WRITE_TIMEOUTS = {"timeout": "900s", "read_timeout": "120s"}


class FileInfo(NamedTuple):
    """An object that a listing names.

    Attributes:
        name: the path below the folder.
        size: the number of bytes.
        version: the ETag, or the time of modification if there is none; it changes with the bytes.
        modified_ns: the time of modification, in nanoseconds since 1970.
    """

    name: str
    size: int
    version: str
    modified_ns: int


class Store:
    """The objects below `url`; for any thread. May be pickled: each process makes its own connections. Raises
    ConfigError if the URL names no folder of a store."""

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self.url = url.rstrip("/")
        self.options = dict(options or {})
        self._root, self._folder = store_and_name(self.url)
        self._pid = -1
        self._reader: Any = None
        self._store: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, self.options)

    def at(self, name: str) -> str:
        """The URL of an object."""
        return f"{self.url}/{name}"

    def list(self) -> Iterator[FileInfo]:
        """Yields all objects, in no order. Raises RemoteError."""
        with self._opened(self.url, "listed") as (obstore, store):
            for chunk in obstore.list(store, f"{self._folder}/"):
                for each in chunk:
                    version = each["e_tag"] or str(each["last_modified"])
                    modified_ns = int(each["last_modified"].timestamp()) * 10**9
                    yield FileInfo(each["path"][len(self._folder) + 1 :], each["size"], version, modified_ns)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Reads bytes `start` to `stop` - 1 of an object, or all of it if `stop` is None. Raises
        RemoteError."""
        self._open()
        read = partial(self._reader.get, f"{self._folder}/{name}", start, stop)
        return bytes(requests.submit(read).result().data)

    def write(self, name: str, content: bytes | Path) -> None:
        """Makes or replaces an object: whole or not at all. Raises RemoteError."""
        with self._opened(self.at(name), "written") as (obstore, store):
            obstore.put(store, f"{self._folder}/{name}", content)

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects, of which some may be gone already. Raises RemoteError."""
        with self._opened(self.url, "removed from") as (obstore, store):
            paths = [f"{self._folder}/{name}" for name in names]
            if paths:
                obstore.delete(store, paths)

    def _open(self) -> None:
        """Opens the reader, and the store that writes and lists. Raises ConfigError."""
        if self._pid != os.getpid():
            options = {**self.options, CLIENT: {**WRITE_TIMEOUTS, **(self.options.get(CLIENT) or {})}}
            self._store = open_store(self._root, store_arguments(self._root, options))
            self._reader = Reader(self._root, self.options)
            self._pid = os.getpid()

    @contextmanager
    def _opened(self, url: str, done: str) -> Iterator[tuple[Any, Any]]:
        """obstore and the store that writes and lists, whose errors become RemoteErrors."""
        self._open()
        import obstore

        try:
            yield obstore, self._store
        except Exception as error:  # obstore's own errors have no common builtin
            raise RemoteError(f"{url} can't be {done}: {explained(error)}.") from error
