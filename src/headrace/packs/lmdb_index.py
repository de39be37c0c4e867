"""Indexes an LMDB that others made, so that its images are read by their place in the file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from headrace.errors import PackError
from headrace.packs.assemble import write_index
from headrace.packs.files import naming
from headrace.packs.inputs.lmdb import LmdbInput
from headrace.packs.lmdb_format import image_begin, parse_value
from headrace.packs.ordered import in_order
from headrace.packs.records import Record
from headrace.packs.rows import Facts, Packed, Part, Rows, part_path
from headrace.sources.pack_index import PackAbout, Shard
from headrace.sources.tar_index import state_of


def write_lmdb_index(
    file: Path, target: Path, workers: int, progress: Callable[[int, int], None] | None
) -> None:
    """Writes `target`, the index of the LMDB `file`: all of it, from the beginning.

    Raises:
        PackError: it isn't an LMDB of msgpack (image bytes, label), or can't be read.
    """
    source = LmdbInput(file)
    records = source.records()
    places = source.places(records).tolist()
    work = target.with_name(target.name + ".partial")
    with naming(target):
        part_path(work, 0).parent.mkdir(parents=True, exist_ok=True)

    def packed(record: Record) -> Packed:
        value = source.value(record)
        sample = parse_value(value, record.key, str(file))
        begin = image_begin(sample.image)
        if not value.startswith(sample.image, begin):
            raise PackError(f"{file}: the value of {record.key} is msgpack of a form that can't be indexed.")
        return Packed((value,), begin, sample, Facts.of(sample.image), None)

    rows = Rows(0)
    for done, (_, each) in enumerate(in_order(packed, records, workers), start=1):
        rows.add(each, places[done - 1])
        if progress is not None:
            progress(done, len(records))
    size = file.stat().st_size
    rows.write(part_path(work, 0), size)
    part = Part.read(part_path(work, 0))
    if part is None or not part.batch.num_rows:
        raise PackError(f"{file} holds no samples.")
    name = file.name if target.parent.resolve() == file.parent.resolve() else str(file.resolve())
    about = PackAbout("lmdb", (Shard(name, size),), made={"by": "headrace index", "state": state_of([file])})
    os.replace(write_index(work, [part], about, None), target)
    shutil.rmtree(work)
