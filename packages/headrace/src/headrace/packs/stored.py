"""Samples as they lie in a pack's shards, on a disk or in an object store."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from headrace.errors import PackError
from headrace.packs.lmdb import LmdbInput, parse_value
from headrace.packs.places import DiskFolder, Folder, StoreFolder
from headrace.packs.samples import Sample
from headrace.packs.tar import member_stem
from headrace.sources.pack_index import FILE_NAME, PackIndex
from headrace.sources.remote import RemotePackSource
from headrace.sources.stores.access import Access
from headrace.sources.stores.client import is_url
from headrace.sources.tar_index import LABEL_EXTENSION, parse_label, samples_in


class StoredPack:
    """A pack that is read as a whole: without the node's cache, but for the index of one in a store."""

    def __init__(self, index: PackIndex, folder: Folder | None = None, version: str = "") -> None:
        self.index = index
        self.folder = folder or DiskFolder(index.path.parent)
        self._version = version

    @classmethod
    def open(cls, path: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> StoredPack:
        """Opens the pack at a path or a URL; `options` as `headrace.PackedDataset` takes them. Raises
        PackError if its index can't be read, or isn't one."""
        if not is_url(path):
            return cls(PackIndex(Path(path) / FILE_NAME))
        url = str(path)
        source = RemotePackSource.at(url, Access(url, options, None, None))
        return cls(source.index, StoreFolder(url, options), source.version)

    @property
    def in_store(self) -> bool:
        """True if its shards are objects of a store."""
        return isinstance(self.folder, StoreFolder)

    def stamps(self) -> list[int]:
        """A number for each shard, which changes when the shard does."""
        about = self.index.about
        if not self.in_store:
            return [file.modified_ns for file in self.folder.find([shard.name for shard in about.shards])]
        stamp = zlib.crc32(f"{about.made.get('checksum')} {self._version}".encode())
        return [stamp] * len(about.shards)

    def sizes(self) -> dict[str, int]:
        """The size in bytes of each shard that is there, by name. Raises RemoteError."""
        if self.in_store:
            return {file.name: file.size for file in self.folder.list()}
        sizes = {}
        for shard in self.index.about.shards:
            with suppress(PackError):
                sizes[shard.name] = self.folder.find([shard.name])[0].size
        return sizes

    def shard_of(self, row: int) -> str:
        """The name of the shard that sample `row` is in. Raises PackError if the index names none."""
        shard = int(self.index.numbers("shard")[row])
        if shard >= len(self.index.about.shards):
            raise PackError(
                f"{self.index.path} is damaged: row {row} is in none of its shards. Make it again."
            )
        return self.index.about.shards[shard].name

    def sample(self, row: int) -> Sample:
        """Reads sample `row` from its shard, not from the index. Raises OSError, and PackError if the shard
        doesn't hold it where the index says."""
        index = self.index
        columns = ("sample_offset", "sample_size", "offset", "size")
        begin, size, offset, length = (int(index.numbers(name)[row]) for name in columns)
        if not begin <= offset <= offset + length <= begin + size:
            raise PackError("the index puts its image outside its sample")
        path = index.path.parent / self.shard_of(row)
        key, extension = index.text("key", row), index.text("extension", row)
        if not index.has_places:
            return replace(self._lmdb.sample(b"%d" % row, key), extension=extension)
        data = self._bytes(row, begin, size)
        if index.about.kind == "lmdb":
            return replace(parse_value(data, key, str(path)), extension=extension)
        label, fields = _fields(data, path, key, offset - begin, length)
        image = data[offset - begin : offset - begin + length]
        return Sample(key, extension, image, label, fields)

    @cached_property
    def _lmdb(self) -> LmdbInput:
        return LmdbInput.of(self.index.path.parent / self.index.about.shards[0].name)

    def _bytes(self, row: int, offset: int, size: int) -> bytes:
        data = self.folder.read(self.shard_of(row), offset, offset + size)
        if len(data) != size:
            raise PackError(f"its shard ends at byte {offset + len(data):,}, in or before it")
        return data


def _fields(
    data: bytes, path: Path, key: str, offset: int, length: int
) -> tuple[int, tuple[tuple[str, bytes], ...]]:
    """(label, further fields) of the one sample in `data`, part of the shard `path`."""
    samples = list(samples_in(data, path))
    if len(samples) != 1 or samples[0].key not in (key, member_stem(key)):
        members = ", ".join(sample.key for sample in samples) or "nothing"
        raise PackError(f"the shard holds {members} where it should be")
    images = [field for field in samples[0].fields if (field.offset, field.size) == (offset, length)]
    if len(images) != 1:
        raise PackError("no member of its shard begins where the index puts its image, and is as long")
    others = [(f.extension, data[f.offset : f.offset + f.size]) for f in samples[0].fields if f != images[0]]
    labels = [content for extension, content in others if extension == LABEL_EXTENSION]
    return parse_label(labels[0], "its label") if labels else -1, tuple(others)
