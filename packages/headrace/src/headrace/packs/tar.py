"""Packs as tar shards that WebDataset reads: the same samples always give the same bytes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import PackError, printable
from headrace.packs.rows import Packed, Part, Rows, pack_file, part_path
from headrace.packs.samples import Sample
from headrace.sources.pack_index import Shard
from headrace.sources.tar_index import BLOCK

# Two blocks of zeros end a tar file.
END = bytes(2 * BLOCK)

# Of ustar's headers: bytes of the name, a size that has too many digits, and what is the same in all of them.
_NAME_SIZE = 100
_SIZE_LIMIT = 8**11
_BEFORE_SIZE = b"0000644\0" + 2 * b"0000000\0"
_BEFORE_SUM = b"\0" + 11 * b"0" + b"\0"
_AFTER_KIND = bytes(100) + b"ustar\x0000" + bytes(64) + 2 * b"0000000\0" + bytes(167)
_SUM_OF_CONSTANTS = sum(_BEFORE_SIZE + _BEFORE_SUM + 8 * b" " + _AFTER_KIND)

# What would be taken for the escapes below.
_ESCAPE_LIKE = re.compile("%(?=2E|25|5F)")


def member_stem(key: str) -> str:
    """The name of a sample's members up to the first dot.

    WebDataset splits a name at the first dot after the last slash, and takes names in double underscores for
    notes of its own: those characters of a key are written as ``%2E`` and ``%5F``, and a ``%`` that could be
    taken for such an escape as ``%25``.
    """
    folder, slash, base = _ESCAPE_LIKE.sub("%25", key).rpartition("/")
    return _without_underscores(folder) + slash + _without_underscores(base.replace(".", "%2E"))


def members(sample: Sample) -> tuple[tuple[bytes, ...], int]:
    """The members of a sample, headers and padding included, and the offset of the image's bytes in them.

    In pieces, to be written one after the other: joining them would copy the image. Raises PackError for a
    key that leads out of the folder.
    """
    if sample.key.startswith("/") or ".." in sample.key.split("/"):
        raise PackError(
            f"Sample {printable(sample.key)} would come to lie outside of the folder in which somebody"
            " unpacks the pack: give it another name, or leave it out."
        )
    stem = member_stem(sample.key)
    fields = sample.fields
    if sample.label >= 0 and not any(extension == "cls" for extension, _ in fields):
        fields = (("cls", b"%d" % sample.label), *fields)
    first = _header(f"{stem}.{sample.extension}" if sample.extension else stem, len(sample.image))
    pieces: tuple[bytes, ...] = (first, sample.image, _padding(sample.image))
    for extension, data in fields:
        pieces += (_header(f"{stem}.{extension}", len(data)), data, _padding(data))
    return pieces, len(first)


def _header(name: str, size: int) -> bytes:
    """The header before a member's data: one block, or three if ustar's fields are too small for it.

    Without owner and time: the same samples give the same bytes, whoever packs them and whenever. (The module
    tarfile takes 0.1 ms for a header, holds the interpreter's lock, and its bytes differ between versions.)
    """
    raw = name.encode()
    if len(raw) <= _NAME_SIZE and raw.isascii() and size < _SIZE_LIMIT:
        return _block(raw, size, b"0")
    records = _pax_record(b"path", raw)
    if size >= _SIZE_LIMIT:
        records += _pax_record(b"size", b"%d" % size)
    short = name.encode("ascii", "replace")[:_NAME_SIZE]
    extended = _block(b"././@PaxHeader", len(records), b"x") + records + _padding(records)
    return extended + _block(short, size if size < _SIZE_LIMIT else 0, b"0")


def _block(name: bytes, size: int, kind: bytes) -> bytes:
    """A header of POSIX's ustar format: mode 0644, all else that isn't given is zero."""
    digits = b"%011o" % size
    # The sum of all bytes, the eight of the sum itself counted as blanks.
    total = _SUM_OF_CONSTANTS + sum(name) + sum(digits) + sum(kind)
    block = _BEFORE_SIZE + digits + _BEFORE_SUM + b"%06o\0 " % total + kind + _AFTER_KIND
    return name.ljust(_NAME_SIZE, b"\0") + block


def _pax_record(name: bytes, value: bytes) -> bytes:
    """``length name=value`` and a newline; the length counts its own digits."""
    rest = b" %s=%s\n" % (name, value)
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d" % length + rest


def _padding(data: bytes) -> bytes:
    return bytes(-len(data) % BLOCK)


def _without_underscores(name: str) -> str:
    return "%5F" + name[1:] if name.startswith("__") else name


class TarShards:
    """The shards of one pack, in `folder`; their rows are in its folder `parts`. The function `parts` gives
    the rows of each shard, or None for those that have to be written."""

    def __init__(self, folder: Path, parts: Callable[[], list[Part | None]]) -> None:
        self.folder = folder
        self.parts = parts

    encode = staticmethod(members)

    @contextmanager
    def writing(self, shard: int) -> Iterator[Callable[[Sequence[Packed]], None]]:
        """Writes a shard: call what this gives with its samples, some at a time. Raises PackError."""
        rows, size = Rows(shard), 0
        with pack_file(self.folder / shard_name(shard)) as file:

            def add(samples: Sequence[Packed]) -> None:
                nonlocal size
                for packed in samples:
                    rows.add(packed, size)
                    size += packed.size
                file.writelines(piece for packed in samples for piece in packed.pieces)

            yield add
            file.write(END)
        rows.write(part_path(self.folder, shard), size + len(END))

    def shards(self, parts: Sequence[Part]) -> tuple[Shard, ...]:
        """Describes the files for the index."""
        return tuple(Shard(shard_name(i), part.shard_bytes) for i, part in enumerate(parts))


def shard_name(shard: int) -> str:
    """The file of a shard."""
    return f"shard-{shard:06}.tar"
