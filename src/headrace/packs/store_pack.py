"""A pack in a store, as those see it who read all of it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.remote.access import Access
from headrace.remote.store import Store
from headrace.remote.urls import is_url
from headrace.sources.pack_index import FILE_NAME, PackIndex
from headrace.sources.remote_pack import RemotePackSource


def open_pack(
    path: str | os.PathLike[str], options: Mapping[str, Any] | None
) -> tuple[PackIndex, StorePack | None]:
    """The index of the pack in the folder `path`; and the pack itself, where that is a URL. Raises PackError
    and ConfigError."""
    if is_url(path):
        pack = StorePack(str(path), options)
        return pack.index, pack
    return PackIndex(Path(path) / FILE_NAME), None


class StorePack:
    """The pack at `url`: beside the node's cache, but for its index.

    Args:
        url: of its folder.
        options: see `headrace.PackedDataset`.

    Attributes:
        index: the node's copy.
        stamp: another one where the pack was made anew.

    Raises:
        PackError: its index can't be had, or isn't one.
        ConfigError: options that can't be obeyed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        source = RemotePackSource.at(url, Access(url, options, None, None))
        self.index: PackIndex = source.index
        self.stamp = zlib.crc32(f"{self.index.about.made.get('checksum')} {source.version}".encode())
        self._store = Store(url, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._store.url, self._store.options)

    def fetch(self, shard: str, begin: int, end: int) -> bytes:
        """Bytes `begin` to `end` - 1 of a shard. Raises RemoteError."""
        return self._store.read(shard, begin, end)

    def sizes(self) -> dict[str, int]:
        """Of all objects in the pack's folder, by name. Raises RemoteError."""
        return {each.name: each.size for each in self._store.list()}
