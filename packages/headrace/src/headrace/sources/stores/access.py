"""The access of a dataset to its store: the user's options, and this process's cache and connections."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace._files import cache_folder, make_cache, whole_file
from headrace.errors import ConfigError, PackError, RemoteError
from headrace.sources.stores.cache import files
from headrace.sources.stores.client import endpoint_of
from headrace.sources.stores.records import Records

# The share of the free disk for records by default.
SHARE = 0.5
# An index is fetched in pieces of so many bytes, so many at a time.
PIECE, PIECES = 16 << 20, 4

_lock = threading.Lock()


class Access:
    """The options of a dataset of URLs, with which it is pickled, and its records in this process.

    `options`, `folder` and `capacity` are `storage_options`, `cache_dir` and `cache_bytes` of
    `headrace.PackedDataset`. Raises ConfigError if one of them is invalid.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any] | None,
        folder: str | os.PathLike[str] | None,
        capacity: int | None,
    ) -> None:
        self.url = url
        self.options = dict(options or {})
        self.folder = Path(folder) if folder is not None else cache_folder()
        if capacity is not None and (not isinstance(capacity, int) or capacity <= 0):
            raise ConfigError(f"cache_bytes ({capacity!r}) must be a number of bytes, 1 or more.")
        self.capacity = capacity
        self._records: Records | None = None

    def records(self) -> Records:
        """The records of this process, made at the first use."""
        if self._records is None or self._records.pid != os.getpid():
            with _lock:
                if self._records is None or self._records.pid != os.getpid():
                    folder = self.folder / "records"
                    self._records = Records(self.options, folder, self.capacity or kept_capacity(self.folder))
        return self._records

    def index(self, url: str) -> tuple[Path, str]:
        """(file, version) of the index at `url`, fetched once per node and again when it changes. Raises
        PackError if it can't be read."""
        records = self.records()
        try:
            size, version = records.head(url)
            return self._fetched(url, size, version), version
        except RemoteError as error:
            raise PackError(
                f"{error}. The URL of a pack is that of the folder that headrace pack made, index.arrow"
                " included."
            ) from error

    def _fetched(self, url: str, size: int, version: str) -> Path:
        folder = make_cache(self.folder / "indexes")
        endpoint = endpoint_of(url, self.options) or ""
        name = hashlib.sha256(f"{endpoint}\0{url}".encode()).hexdigest()[:24]
        path = folder / f"{name}-{hashlib.sha256(version.encode()).hexdigest()[:16]}.arrow"
        # The kernel lets go of it when its holder dies.
        with open(folder / f"{name}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file() or path.stat().st_size != size:
                self._download(url, size, version, path)
                for old in folder.glob(f"{name}-*"):
                    if old != path:
                        old.unlink()
        return path

    def _download(self, url: str, size: int, version: str, path: Path) -> None:
        records = self.records()
        pieces = [(url, start, min(start + PIECE, size), version) for start in range(0, size, PIECE)]
        with whole_file(path, contended=True) as file:
            for first in range(0, len(pieces), PIECES):
                group = [records.start_fetch(*piece) for piece in pieces[first : first + PIECES]]
                for answer in group:
                    file.write(answer.result().data)

    def __str__(self) -> str:
        """Describes store and cache."""
        endpoint = endpoint_of(self.url, self.options)
        at = f" at {endpoint}" if endpoint else ""
        stats = self.records().stats()
        return (
            f"{self.url}{at}; cache {self.folder}, {stats.cache_bytes / 1e9:,.1f} of"
            f" {stats.cache_capacity / 1e9:,.1f} GB"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_records": None}


def kept_capacity(folder: Path) -> int:
    """Returns how many bytes records may take by default, which the node's first process decides for all
    later ones."""
    with open(make_cache(folder) / "records.bytes", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = file.read().strip("\0")  # what a power failure may leave
        if not number:
            number = str(max(files.BLOCK, int(SHARE * shutil.disk_usage(folder).free)))
            file.truncate(0)
            file.write(number)
    return int(number)


def _forget_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
