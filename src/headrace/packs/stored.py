"""A sample as it lies in a pack's shard, told apart again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from headrace.errors import PackError
from headrace.packs.lmdb_format import parse_value
from headrace.packs.records import Sample
from headrace.packs.tar_format import member_stem, parse_label
from headrace.sources.pack_index import PackIndex
from headrace.sources.reading import read_part
from headrace.sources.tar_index import LABEL_EXTENSION
from headrace.sources.tar_samples import samples_in

# Gives bytes (begin, end) of a shard by its name, where shards aren't files beside the index.
Fetch = Callable[[str, int, int], bytes]


def shard_path(index: PackIndex, row: int) -> Path:
    """The file that sample `row` is in. Raises PackError where the index names none."""
    shard = int(index.numbers("shard")[row])
    if shard >= len(index.about.shards):
        raise PackError(f"{index.path} is damaged: row {row} is in none of its shards. Make it again.")
    return index.path.parent / index.about.shards[shard].name


def read_image(index: PackIndex, row: int, most: int | None = None, fetch: Fetch | None = None) -> bytes:
    """The image of sample `row`, or its first `most` bytes; see `read_stored`. Raises PackError, OSError."""
    size = int(index.numbers("size")[row])
    return _read(index, row, int(index.numbers("offset")[row]), min(size, most or size), fetch)


def read_stored(index: PackIndex, row: int, fetch: Fetch | None = None) -> Sample:
    """Sample `row` of a pack, taken from its shard and not from the index.

    Args:
        fetch: gives bytes (begin, end) of a shard by its name, where shards aren't files beside the index.

    Raises:
        PackError: the shard doesn't hold it where the index says.
        OSError: the shard can't be read.
    """
    begin, size, offset, length = (
        int(index.numbers(name)[row]) for name in ("sample_offset", "sample_size", "offset", "size")
    )
    if not begin <= offset <= offset + length <= begin + size:
        raise PackError("the index puts its image outside its sample")
    path = shard_path(index, row)
    data = _read(index, row, begin, size, fetch)
    key = index.text("key", row)
    if index.about.kind == "lmdb":
        return replace(parse_value(data, key, str(path)), extension=index.text("extension", row))
    label, fields = _fields(data, path, key, offset - begin, length)
    image = data[offset - begin : offset - begin + length]
    return Sample(key, index.text("extension", row), image, label, fields)


def _fields(
    data: bytes, path: Path, key: str, offset: int, length: int
) -> tuple[int, tuple[tuple[str, bytes], ...]]:
    """(label, further fields) of the one sample in `data`, part of the shard `path`."""
    samples = list(samples_in(data, path))
    if len(samples) != 1 or samples[0].key not in (key, member_stem(key)):
        found = ", ".join(sample.key for sample in samples) or "nothing"
        raise PackError(f"the shard holds {found} where it should be")
    images = [field for field in samples[0].fields if (field.offset, field.size) == (offset, length)]
    if len(images) != 1:
        raise PackError("no member of its shard begins where the index puts its image, and is as long")
    others = [(f.extension, data[f.offset : f.offset + f.size]) for f in samples[0].fields if f != images[0]]
    labels = [content for extension, content in others if extension == LABEL_EXTENSION]
    return parse_label(labels[0]) if labels else -1, tuple(others)


def _read(index: PackIndex, row: int, offset: int, size: int, fetch: Fetch | None) -> bytes:
    path = shard_path(index, row)
    if fetch is None:
        data = read_part(path, offset, size)
    else:
        data = fetch(index.about.shards[int(index.numbers("shard")[row])].name, offset, offset + size)
    if len(data) != size:
        raise PackError(f"its shard ends at byte {offset + len(data):,}, in or before it")
    return data
