"""WebDataset shards: their samples, and indexes of shards that came without one, made once and kept."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from headrace._files import cache_folder, make_cache
from headrace.errors import PackError, printable
from headrace.sources.pack import lmdb_refused, read_extent
from headrace.sources.pack_index import FILE_NAME, LEFT_OUT, PackAbout, PackIndex, Shard, write_index
from headrace.sources.reading import named, open_regular

# What tarfile raises for bytes that aren't what they seem.
READ_ERRORS = (tarfile.TarError, OverflowError, LookupError, ValueError, MemoryError, RecursionError)

BLOCK = 512  # tar's unit: headers are one, data is padded to whole ones

# Which member of a sample is its image: the first kind of these that it has.
IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "bmp", "ppm", "pgm", "tif", "tiff", "gif")
LABEL_EXTENSION = "cls"

LMDB_FILE = "data.mdb"


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


def read_samples(path: Path) -> Iterator[TarSample]:
    """The samples of an uncompressed tar file, in its order. Reads headers only; raises as `read_members`.

    Members that aren't regular files, have no extension, or are WebDataset's own notes (``__name__``) belong
    to no sample.
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
        folder, slash, base = text.rpartition("/")
        stem, _, extension = base.partition(".")
        if not member.isreg() or member.issparse() or not extension or base.startswith("__"):
            continue
        if fields and folder + slash + stem != key:
            yield TarSample(key, start, end - start, tuple(fields))
            fields = []
        if not fields:
            key, start = folder + slash + stem, member.offset
        fields.append(Field(extension, member.offset_data, member.size))
        end = member.offset_data + -(-member.size // BLOCK) * BLOCK
    if fields:
        yield TarSample(key, start, end - start, tuple(fields))


def read_members(file: BinaryIO, path: Path) -> Iterator[tarfile.TarInfo]:
    """The members of the tar file that begins where `file`, opened from `path`, is. Raises PackError if it
    isn't an uncompressed tar file, ends in the middle, or has a damaged header."""
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


def is_lmdb(file: Path) -> bool:
    """Returns whether the file is an LMDB, by its name."""
    return file.suffix in (".mdb", ".lmdb")


def image_of(sample: TarSample) -> Field | None:
    """The member that is the sample's image, or None if it has none."""
    by_extension = {field.extension.lower(): field for field in sample.fields}
    return next((by_extension[name] for name in IMAGE_EXTENSIONS if name in by_extension), None)


def label_of(sample: TarSample, shard: Path) -> int:
    """Returns the label in the sample's .cls member, as WebDataset writes it, or -1 if it has none. Raises
    PackError if it isn't a decimal number."""
    field = next((field for field in sample.fields if field.extension == LABEL_EXTENSION), None)
    if field is None:
        return -1
    # No number is longer: a member may have any size.
    text = read_extent(shard, field.offset, min(field.size, 20))
    return parse_label(text, f"{shard}: the label of {sample.key}.{LABEL_EXTENSION}")


def parse_label(data: bytes, name: str) -> int:
    """The label in the bytes of a .cls member, which an error calls `name`. Raises PackError if they aren't a
    decimal number."""
    label = int(data) if len(data) < 20 and data.strip().isdigit() else -1
    if not 0 <= label < 1 << 63:
        raise PackError(f"{name} is {data[:40]!r}, not a number from 0 on")
    return label


def resolved_shards(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The .tar files of a folder, one of them, or a list; or the file of an LMDB: as absolute paths. Raises
    PackError if there are none."""
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise PackError("No shards: the list of .tar files is empty.")
        return [Path(each).resolve() for each in path]
    at = Path(path)
    if at.is_file():
        return [at.resolve()]
    at = at.resolve()  # the folder only: a link in it keeps its place there
    lmdb = at / LMDB_FILE
    shards = [lmdb] if lmdb.is_file() else sorted(at.glob("*.tar"))
    if not shards:
        what = f"holds neither {FILE_NAME} nor .tar files" if at.is_dir() else "doesn't exist"
        raise PackError(f"{at} {what}: give the folder of a pack, or .tar files.")
    return shards


def kept_index(shards: Sequence[Path]) -> Path:
    """Returns the place in the user's cache of the index of `shards` (absolute paths)."""
    digest = hashlib.sha256(b"\0".join(os.fsencode(shard) for shard in shards)).hexdigest()[:32]
    return cache_folder() / "packs" / f"{digest}.arrow"


def find_tar_index(shards: Sequence[Path]) -> PackIndex:
    """The kept index of `shards` (absolute paths), made (again) if there is none or a shard has changed.
    Raises PackError if a shard can't be read, or none of them holds an image."""
    kept = kept_index(shards)
    state = state_of(shards)
    with suppress(PackError):  # not there yet, damaged, or another version's
        index = PackIndex(kept)
        if index.about.made.get("state") == state:
            return index
    if is_lmdb(shards[0]):
        raise lmdb_refused(shards[0])
    make_cache(kept.parent)
    write_tar_index(shards, kept, state)
    return PackIndex(kept)


def changed_shards(index: PackIndex) -> list[Path]:
    """Shards that others made and that have changed since `headrace index` or a scan read them."""
    state = index.about.made.get("state")
    if state is None:
        return []
    paths = [index.path.parent / shard.name for shard in index.about.shards]
    known = zip(paths, state, strict=True)
    return [path for path, was in known if path.is_file() and state_of([path]) != [was]]


def write_tar_index(shards: Sequence[Path], target: Path, state: list[list[int]]) -> None:
    """Reads the headers of all `shards` and writes `target`, whole or not at all."""
    rows, left_out = [], 0
    for number, shard in enumerate(shards):
        for sample in read_samples(shard):
            image = image_of(sample)
            if image is None:
                left_out += 1
                continue
            place = (number, image.offset, image.size, 0, sample.offset, sample.size, 0, 0, b"")
            rows.append((sample.key, image.extension, label_of(sample, shard), *place))
    if not rows:
        names = ", ".join(str(shard) for shard in shards[:3])
        raise PackError(f"{names}: no sample has an image ({', '.join(IMAGE_EXTENSIONS)}).")
    about = PackAbout(
        "tar",
        tuple(Shard(str(shard), size) for shard, (size, _) in zip(shards, state, strict=True)),
        made={
            "by": "reading the shards' headers",
            "checksums": False,
            "state": state,
            LEFT_OUT: left_out,
        },
    )
    write_index(target, rows, about)


def state_of(files: Sequence[Path]) -> list[list[int]]:
    """Size and time of modification of each file."""
    state = []
    for file in files:
        try:
            info = file.stat()
        except OSError as error:
            raise PackError(f"{file} can't be read: {error.strerror}.") from error
        state.append([info.st_size, info.st_mtime_ns])
    return state
