"""Verification of a pack: its shards and samples against its index, and against its source if specified."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from headrace._arrow import pa, pc
from headrace._machine import usable_cores
from headrace.errors import PackError, printable
from headrace.packs.changes import Changes
from headrace.packs.inputs import open_input
from headrace.packs.rows import checksum
from headrace.packs.samples import PILLOW_ERRORS, Input, Item, Listing, ProgressCallback, Sample, in_order
from headrace.packs.stored import StoredPack
from headrace.sources.pack_index import FILE_NAME, PackIndex
from headrace.sources.tar_index import changed_shards

# Rows that a thread is given at a time.
CHUNK = 32

# Threads that wait for a store, beyond the cores.
READERS = 32


@dataclass(frozen=True)
class Problem:
    """Something that isn't as it should be.

    Attributes:
        shard: the name of the file; empty if it is no file in particular.
        key: the key of the sample; empty if it is the file as a whole.
        what: what is wrong.
    """

    shard: str
    key: str
    what: str

    def __str__(self) -> str:
        """One line: ``shard-000001.tar: n01440764/x: its bytes have changed``."""
        return printable(": ".join(part for part in (self.shard, self.key, self.what) if part))


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    Attributes:
        samples: the number of samples that were checked.
        problems: what is wrong, in the pack's order; none if the pack is sound.
        notes: remarks on what could not be checked.
    """

    samples: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


class Comparison:
    """A pack, whose index was checked, and what it was made from."""

    def __init__(self, source: Input, index: PackIndex) -> None:
        made = index.about.made
        self._source = source
        self._changed = any(made.get(name) for name in ("optimize", "reencode", "max_side"))
        self._lossy = bool(made.get("max_side")) or made.get("reencode") == "jpeg"
        self._classes_differ = bool(source.classes) and index.about.classes != source.classes
        # Some rows of a table in chunks cost as much as all.
        self._items = Listing(source.items().table.combine_chunks())
        keys, packed = self._items.table["key"].combine_chunks(), index.batch["key"]
        self._numbers = pc.index_in(packed, value_set=keys)  # of each row's item; null if there is none
        self._missing = keys.filter(pc.invert(pc.is_in(keys, value_set=packed))).to_pylist()
        self._not_compared: list[str] = []

    def items(self, rows: range) -> Iterator[tuple[int, Item | None]]:
        """Yields each of `rows` with its item in the source, or None if there is none."""
        numbers = self._numbers.slice(rows.start, len(rows))
        items = iter(self._items.take(numbers.drop_null()))
        for row, valid in zip(rows, numbers.is_valid().to_pylist(), strict=True):
            yield row, next(items) if valid else None

    def differences(self, packed: Sample, item: Item | None) -> Iterator[str]:
        """Yields what differs in one sample of the pack. Several threads may call it. Raises PackError."""
        if item is None:
            yield "isn't in the source"
            return
        original = self._source.read(item)
        if original.label != packed.label:
            yield f"has label {packed.label}, and in the source {original.label}"
        if _other(original) != _other(packed):
            yield "its further fields differ from the source's"
        if original.image != packed.image:
            yield from self._of_images(packed.key, original.image, packed.image)

    def problems(self) -> Iterator[Problem]:
        """Yields what is wrong with the pack as a whole."""
        for key in self._missing:
            yield Problem("", key, "is missing from the pack")
        if self._classes_differ:
            yield Problem(FILE_NAME, "", "the classes' names differ from the source's")

    def notes(self) -> list[str]:
        """Remarks on what could not be compared, for users."""
        count = len(self._not_compared)
        return [f"{count:,} images were re-encoded with loss: their pixels were not compared."] * (count > 0)

    def _of_images(self, key: str, original: bytes, packed: bytes) -> Iterator[str]:
        if not self._changed:
            yield "its image's bytes differ from the source's"
        elif self._lossy:
            self._not_compared.append(key)
        else:
            try:
                if _pixels(original) != _pixels(packed):
                    yield "its pixels differ from the source's"
            except PILLOW_ERRORS as error:
                yield f"its image differs from the source's, and Pillow can't decode one of them: {error}"


def _other(sample: Sample) -> list[tuple[str, bytes]]:
    """The fields but the label, which sources may keep in another form."""
    return sorted(field for field in sample.fields if field[0] != "cls")


def _pixels(data: bytes) -> tuple[tuple[int, int], bytes]:
    with Image.open(io.BytesIO(data)) as image:
        return image.size, image.convert("RGB").tobytes()


def verify(
    path: str | os.PathLike[str],
    *,
    against: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> Verdict:
    """Reads a whole pack and compares it with what its index says, and with what it was made from. Both may
    be URLs.

    Keys, labels and all fields must be those of `against`; images too, byte for byte, or pixel for pixel as
    Pillow decodes them if the pack was made with changes. Calls `progress` with (samples done, samples in
    all). Raises PackError if there is no index, or the index or the source can't be read.
    """
    pack = StoredPack.open(path, storage_options)
    index = pack.index
    source = None if against is None else open_input(against, Changes(), storage_options)
    problems = [*_of_index(index), *_of_shards(pack)]
    try:
        index.batch.validate(full=True)
    except pa.ArrowInvalid as error:
        # None of its rows can be read.
        problems.append(Problem(index.path.name, "", f"is damaged: {error}"))
        return Verdict(len(index), tuple(problems), ())

    comparison = None if source is None else Comparison(source, index)

    def check(rows: range) -> list[Problem]:
        compared = ((row, None) for row in rows) if comparison is None else comparison.items(rows)
        return [problem for row, item in compared for problem in _of_row(pack, row, comparison, item)]

    chunks = (range(i, min(i + CHUNK, len(index))) for i in range(0, len(index), CHUNK))
    threads = workers or usable_cores() + (READERS if pack.in_store else 0)
    with closing(in_order(check, chunks, threads)) as stream:
        for rows, of_rows in stream:
            problems += of_rows
            if progress is not None:
                progress(rows.stop, len(index))
    notes = [] if has_checksums(index) else ["The index has no checksums: make it again by headrace index."]
    if comparison is not None:
        problems += comparison.problems()
        notes += comparison.notes()
    return Verdict(len(index), tuple(problems), tuple(notes))


def has_checksums(index: PackIndex) -> bool:
    """True if the index has checksums of images: not if it was made from headers alone."""
    return bool(index.about.made.get("checksums", True))


def _of_index(index: PackIndex) -> Iterator[Problem]:
    expected = index.about.made.get("checksum")
    try:
        same = expected is None or checksum(index.batch) == expected
    except (ValueError, IndexError):
        same = False  # offsets that point nowhere
    if not same:
        yield Problem(index.path.name, "", "its rows have changed since it was made")


def _of_shards(pack: StoredPack) -> Iterator[Problem]:
    index, sizes = pack.index, pack.sizes()
    if not pack.in_store:
        for path in changed_shards(index):
            yield Problem(path.name, "", "has changed since headrace index: run it again")
    for shard in index.about.shards:
        size = sizes.get(shard.name)
        if size is None:
            yield Problem(shard.name, "", "is missing")
        elif size != shard.size:
            lengths = f"has {size:,} bytes, and its index was made for {shard.size:,}"
            yield Problem(shard.name, "", f"{lengths}: cut short, changed, or another pack's")


def _of_row(
    pack: StoredPack, row: int, comparison: Comparison | None, item: Item | None
) -> Iterator[Problem]:
    index = pack.index
    key, shard = index.text("key", row), index.path.name
    try:
        shard = Path(pack.shard_of(row)).name
        stored = pack.sample(row)
    except (PackError, OSError) as error:
        yield Problem(shard, key, str(error))
        return
    except (IndexError, MemoryError, ValueError, OverflowError) as error:
        yield Problem(shard, key, f"its place in the index is invalid: {error}")
        return
    if has_checksums(index) and zlib.crc32(stored.image) != index.numbers("checksum")[row]:
        yield Problem(shard, key, "the image's bytes aren't those that were packed")
    label = int(index.numbers("label")[row])
    if stored.label != label:
        yield Problem(shard, key, f"its shard says label {stored.label}, and the index {label}")
    if comparison is not None:
        yield from (Problem(shard, key, what) for what in comparison.differences(stored, item))
