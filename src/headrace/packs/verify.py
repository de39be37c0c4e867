"""Checks a pack: every shard, every record, and, where the source is at hand, that nothing was changed."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import PackError, printable
from headrace.measure.machine import usable_cores
from headrace.packs.assemble import checksum
from headrace.packs.changes import Changes
from headrace.packs.compare import Comparison
from headrace.packs.inputs.detect import open_input
from headrace.packs.ordered import in_order
from headrace.packs.records import Progress, Sample
from headrace.packs.store_pack import StorePack, open_pack
from headrace.packs.stored import Fetch, read_stored, shard_path
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
        shard: the file; empty: none in particular.
        key: the sample; empty: the file as a whole.
        what: is wrong.
    """

    shard: str
    key: str
    what: str

    def __str__(self) -> str:
        """One line: ``shard-000001.tar: n01440764/x: its bytes have changed``."""
        return printable(": ".join(part for part in (self.shard, self.key, self.what) if part))


@dataclass(frozen=True)
class Verdict:
    """What was found.

    Attributes:
        samples: that were looked at.
        problems: in the pack's order; none: all is well.
        notes: what could not be checked, for people.
    """

    samples: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


def verify(
    path: str | os.PathLike[str],
    *,
    against: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Verdict:
    """Reads a whole pack and compares it with what its index says, and with its source.

    Args:
        path: the pack's folder, or its URL.
        against: what it was made from, or its URL. Keys, labels and all fields must be equal; images too,
            byte for byte, or pixel for pixel as Pillow decodes them where the pack was made with changes.
        workers: threads; None: the cores that this process may use, and 32 more where the pack is in a store.
        storage_options: of the stores; see `headrace.PackedDataset`.
        progress: called with (samples done, samples in all), now and then.

    Raises:
        PackError: there is no index, it can't be read, or the source can't.
    """
    index, there = open_pack(path, storage_options)
    fetch = there.fetch if there is not None else None
    comparison = None
    if against is not None:
        comparison = Comparison(open_input(against, Changes(), storage_options), index)
    problems = [*_of_index(index), *_of_shards(index, there)]
    try:
        index.batch.validate(full=True)
    except pa.ArrowInvalid as error:
        # No row of it can be looked at.
        problems.append(Problem(index.path.name, "", f"is damaged: {error}"))
        return Verdict(len(index), tuple(problems), ())

    def check(rows: range) -> list[Problem]:
        return [problem for row in rows for problem in _of_row(index, row, fetch, comparison)]

    chunks = (range(i, min(i + CHUNK, len(index))) for i in range(0, len(index), CHUNK))
    threads = workers or usable_cores() + (READERS if there is not None else 0)
    with closing(in_order(check, chunks, threads)) as stream:
        for rows, found in stream:
            problems += found
            if progress is not None:
                progress(rows.stop, len(index))
    notes: list[str] = []
    if not has_checksums(index):
        notes.append("The index has no checksums: make it again by headrace index.")
    if comparison is not None:
        problems += [Problem("", key, "is missing from the pack") for key in comparison.missing()]
        if comparison.classes_differ:
            problems.append(Problem(FILE_NAME, "", "the classes' names differ from the source's"))
        notes += comparison.notes()
    return Verdict(len(index), tuple(problems), tuple(notes))


def has_checksums(index: PackIndex) -> bool:
    """Whether the images' checksums were made: not where an index was made from headers alone."""
    return bool(index.about.made.get("checksums", True))


def _of_index(index: PackIndex) -> Iterator[Problem]:
    expected = index.about.made.get("checksum")
    if expected is None:
        return
    try:
        found = checksum(index.batch)
    except (ValueError, IndexError):
        found = None  # offsets that point nowhere
    if found != expected:
        yield Problem(index.path.name, "", "its rows have changed since it was made")


def _of_shards(index: PackIndex, there: StorePack | None) -> Iterator[Problem]:
    if there is None:
        for path in changed_shards(index):
            yield Problem(path.name, "", "has changed since headrace index: run it again")
    sizes = _sizes(index) if there is None else there.sizes()
    for shard in index.about.shards:
        size = sizes.get(shard.name)
        if size is None:
            yield Problem(shard.name, "", "is missing")
        elif size != shard.size:
            yield Problem(
                shard.name,
                "",
                f"has {size:,} bytes, and its index was made for {shard.size:,}: cut short, changed, or"
                " another pack's",
            )


def _sizes(index: PackIndex) -> dict[str, int]:
    found = {}
    for shard in index.about.shards:
        with suppress(FileNotFoundError):
            found[shard.name] = (index.path.parent / shard.name).stat().st_size
    return found


def _of_row(
    index: PackIndex, row: int, fetch: Fetch | None, comparison: Comparison | None
) -> Iterator[Problem]:
    key, shard = index.text("key", row), index.path.name
    try:
        shard = shard_path(index, row).name
        stored = read_stored(index, row, fetch)
    except (PackError, OSError) as error:
        yield Problem(shard, key, str(error))
        return
    except (IndexError, MemoryError, ValueError, OverflowError) as error:
        yield Problem(shard, key, f"its place in the index is no place: {error}")
        return
    yield from (Problem(shard, key, what) for what in _of_stored(index, row, stored))
    if comparison is not None:
        yield from (Problem(shard, key, what) for what in comparison.differences(stored))


def _of_stored(index: PackIndex, row: int, stored: Sample) -> Iterator[str]:
    if has_checksums(index) and zlib.crc32(stored.image) != index.numbers("checksum")[row]:
        yield "the image's bytes aren't those that were packed"
    label = int(index.numbers("label")[row])
    if stored.label != label:
        yield f"its shard says label {stored.label}, and the index {label}"
