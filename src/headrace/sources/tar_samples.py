"""The samples of a tar shard, as WebDataset groups its members: by their name up to the first dot."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headrace.errors import PackError, printable
from headrace.sources.reading import named, open_regular

# What tarfile raises for bytes that aren't what they seem.
READ_ERRORS = (tarfile.TarError, OverflowError, LookupError, ValueError, MemoryError, RecursionError)

BLOCK = 512  # tar's unit: headers are one, data is padded to whole ones


@dataclass(frozen=True)
class Field:
    """One member of a sample: its `extension` (all after the first dot) and where its bytes are."""

    extension: str
    offset: int
    size: int


@dataclass(frozen=True)
class TarSample:
    """Members that share a key and follow one another.

    Attributes:
        key: folder and name up to the first dot.
        offset, size: of all members together, headers included, in bytes.
        fields: in the order of the shard.
    """

    key: str
    offset: int
    size: int
    fields: tuple[Field, ...]


def split_name(name: str) -> tuple[str, str]:
    """(key, extension) of a member's name: ``a/b.seg.png`` is (``a/b``, ``seg.png``)."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension


def read_samples(path: Path) -> Iterator[TarSample]:
    """The samples of an uncompressed tar file, in its order. Reads headers only.

    Members that aren't regular files, have no extension, or are WebDataset's own notes (``__name__``) belong
    to no sample.

    Raises:
        PackError: it isn't an uncompressed tar file, ends in the middle, or has a damaged header.
    """
    with named(path), open_regular(path) as file:
        yield from _group(read_members(file, path))


def samples_in(data: bytes, shard: Path) -> Iterator[TarSample]:
    """The samples in some members of `shard`, offsets counted from their start."""
    yield from _group(read_members(io.BytesIO(data), shard))


def _group(members: Iterable[tarfile.TarInfo]) -> Iterator[TarSample]:
    key, start, end = "", 0, 0
    fields: list[Field] = []
    for member in members:
        # Bytes that aren't UTF-8 become text that can be written anywhere.
        text = member.name.encode("utf-8", "backslashreplace").decode("utf-8")
        name, extension = split_name(text)
        base = os.path.basename(name)
        if not member.isreg() or member.issparse() or not extension or base.startswith("__"):
            continue
        if fields and name != key:
            yield TarSample(key, start, end - start, tuple(fields))
            fields = []
        if not fields:
            key, start = name, member.offset
        fields.append(Field(extension, member.offset_data, member.size))
        end = member.offset_data + -(-member.size // BLOCK) * BLOCK
    if fields:
        yield TarSample(key, start, end - start, tuple(fields))


def read_members(file: BinaryIO, path: Path) -> Iterator[tarfile.TarInfo]:
    """The members of the tar file that begins where `file`, opened from `path`, is.

    Raises:
        PackError: it isn't an uncompressed tar file, ends in the middle, or has a damaged header.
    """
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # else all of them are kept
                # A size below zero would lead back, and round in circles.
                if member.size < 0:
                    raise tarfile.ReadError(f"a member of {member.size:,} bytes at byte {member.offset:,}")
                yield member
            # tarfile takes a header that it can't read for the end, unless it is the first.
            file.seek(tar.offset)
            if file.read(BLOCK).strip(b"\0"):
                raise tarfile.ReadError(f"damaged header at byte {tar.offset:,}")
    except READ_ERRORS as error:
        raise PackError(
            f"{printable(str(path))} can't be read as an uncompressed tar file: {error or repr(error)}."
            " Decompress it, or fetch it again."
        ) from error
