"""ILSVRC2012 as it is downloaded: with the keys, labels and order of the extracted ImageFolder tree."""

from __future__ import annotations

import math
import os
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from headrace.errors import PackError
from headrace.packs.folders import extension_of, stem_of
from headrace.packs.records import Input, Record, Records, Sample
from headrace.sources.reading import read_part
from headrace.sources.tar_index import read_members

TRAIN, VAL = "ILSVRC2012_img_train", "ILSVRC2012_img_val"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

# Of a file in the devkit, decompressed; the largest has 200,000.
MOST_BYTES = 64_000_000

_TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"
_META = "data/meta.mat"

# (wnid, name, offset, size) of an image in the tar file.
_Place = tuple[str, str, int, int]


class IlsvrcInput(Input):
    """The images of the train or the val tar file, read from inside it.

    Args:
        path: of the tar file, by its own name; val needs the devkit in the same folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kind = path.name.partition(".")[0]

    def records(self) -> Records:
        images = sorted(self._of_train() if self.kind == TRAIN else self._of_val())
        self.classes = tuple(sorted({wnid for wnid, *_ in images}))
        self._labels = {wnid: label for label, wnid in enumerate(self.classes)}
        stamp = self._path.stat().st_mtime_ns
        return Records(
            Record(f"{wnid}/{stem_of(name)}", size, stamp, offset, (wnid, name))
            for wnid, name, offset, size in images
        )

    def read(self, record: Record) -> Sample:
        wnid, name = record.names
        image = read_part(self._path, record.number, record.size)
        if len(image) != record.size:
            raise PackError(f"{self._path} ends in the middle of {record.key}: download it again.")
        return Sample(record.key, extension_of(name), image, self._labels[wnid])

    def _of_train(self) -> Iterator[_Place]:
        """A tar file of tar files, one a class."""
        with open(self._path, "rb") as file:
            for folder in read_members(file, self._path):
                file.seek(folder.offset_data)
                for image in read_members(file, self._path):
                    yield stem_of(folder.name), os.path.basename(image.name), image.offset_data, image.size

    def _of_val(self) -> Iterator[_Place]:
        """All images in one folder: the devkit says which class each is of, in the order of their names."""
        with open(self._path, "rb") as file:
            members = [member for member in read_members(file, self._path) if member.isreg()]
        members.sort(key=lambda member: os.path.basename(member.name))
        wnids = validation_wnids(self._path.with_name(DEVKIT))
        if len(members) != len(wnids):
            raise PackError(
                f"{self._path} holds {len(members):,} images, and {DEVKIT} labels {len(wnids):,}."
            )
        for member, wnid in zip(members, wnids, strict=True):
            yield wnid, os.path.basename(member.name), member.offset_data, member.size


def validation_wnids(devkit: Path) -> list[str]:
    """The class of each validation image, by the devkit. Raises PackError."""
    try:
        with tarfile.open(devkit, "r:gz") as tar:
            files: dict[str, bytes] = {}
            while len(files) < 2 and (member := tar.next()) is not None:
                for name in (_TRUTH, _META):
                    if member.name.endswith(name):
                        files[name] = _content(tar, member)
        # Leaves of the hierarchy are classes; the rest of the synsets is above them.
        synsets = read_structs(files[_META], "synsets")
        wnids = {int(s["ILSVRC2012_ID"][0]): s["WNID"] for s in synsets if not s["num_children"][0]}
        return [wnids[int(line)] for line in files[_TRUTH].split()]
    except FileNotFoundError:
        raise PackError(
            f"{devkit} isn't there: it says which classes the validation images are of."
        ) from None
    except (OSError, EOFError, zlib.error, tarfile.TarError, LookupError, TypeError, ValueError) as error:
        raise PackError(f"{devkit} can't be read as ILSVRC2012's devkit: {error!r}.") from error


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    if not member.isreg() or not 0 <= member.size <= MOST_BYTES:
        raise ValueError(f"{member.name} is not a file of up to {MOST_BYTES:,} bytes")
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


# What torchvision's ImageNet makes of the devkit: (names by wnid, wnid of each validation image).
META = "meta.bin"


def known_wnids(folder: str) -> tuple[str, ...]:
    """All classes' wnids, sorted, from the devkit or torchvision's meta.bin in `folder` or the one above it;
    empty where there is neither, or it can't be read."""
    for place in (Path(folder), Path(os.path.abspath(folder)).parent):
        try:
            if (place / META).is_file():
                return tuple(sorted(torch.load(place / META, weights_only=True)[0]))
            if (place / DEVKIT).is_file():
                return tuple(sorted(set(validation_wnids(place / DEVKIT))))
        except Exception:  # whatever torch raises for a damaged file
            continue  # only names are lost that way; counts and form are still checked
    return ()


# Reading MATLAB 5 files: arrays of structs, which is as much of the format ("MAT-File Format", The MathWorks,
# chapter 1, level 5) as the devkit needs. Not by scipy.io.loadmat, which a damaged file can make crash the
# process: 400 mutations of a small file did.

# Data types of elements, as struct's letters; those of text by their encodings.
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXTS = {16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}
_MATRIX, _COMPRESSED = 14, 15

# Classes of arrays.
_STRUCT, _CHAR = 2, 4
_FIRST_NUMERIC = 6

_HEADER = 128

# What a damaged file raises, besides ValueError.
DAMAGE = (struct.error, zlib.error, OverflowError, RuntimeError, StopIteration, LookupError, TypeError)


def read_structs(data: bytes, name: str) -> list[dict[str, Any]]:
    """The variable `name`, an array of structs: numbers come as lists of them, text as str.

    Raises:
        ValueError: the file isn't of this kind, or holds no such variable.
    """
    if data[126:128] != b"IM":
        raise ValueError("it isn't a little-endian MATLAB 5 file")
    try:
        for kind, content in _elements(data[_HEADER:]):
            if kind == _MATRIX:
                found, value = _array(content)
                if found == name and isinstance(value, list):
                    return value
    except DAMAGE as error:
        raise ValueError(f"it is damaged: {error!r}") from None
    raise ValueError(f"it holds no structs {name!r}")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """(type, content) of the elements in `data`, decompressed."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small element: its size and content share the tag
            yield kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]
            at += 8
            continue
        content = data[at + 8 : at + 8 + size]
        if kind == _COMPRESSED:
            whole = zlib.decompressobj().decompress(content, MOST_BYTES)
            if len(whole) == MOST_BYTES:
                raise ValueError(f"it holds more than {MOST_BYTES:,} bytes once it is decompressed")
            yield from _elements(whole)
            at += 8 + size
        else:
            yield kind, content
            at += 8 + size + -size % 8


def _array(data: bytes) -> tuple[str, Any]:
    """(name, value) of an array; the value of a kind that isn't needed is None."""
    if not data:
        return "", []
    parts = _elements(data)
    kind = _numbers(next(parts))[0] & 0xFF
    shape = _numbers(next(parts))
    name = next(parts)[1].decode("ascii")
    if kind == _STRUCT:
        width = _numbers(next(parts))[0]
        text = next(parts)[1]
        fields = [text[i : i + width].partition(b"\0")[0].decode("ascii") for i in range(0, len(text), width)]
        count = math.prod(shape)
        if count and not (fields and 0 < count <= len(data)):  # each takes some of the bytes
            raise ValueError(f"it is damaged: {count} structs of {len(fields)} fields in {len(data):,} bytes")
        return name, [{field: _array(next(parts)[1])[1] for field in fields} for _ in range(count)]
    if kind == _CHAR:
        return name, _text(next(parts, (16, b"")))
    return name, _numbers(next(parts, (2, b""))) if kind >= _FIRST_NUMERIC else None


def _numbers(element: tuple[int, bytes]) -> list[Any]:
    kind, content = element
    letter = _NUMBERS[kind]
    count = len(content) // struct.calcsize(letter)
    return list(struct.unpack(f"<{count}{letter}", content))


def _text(element: tuple[int, bytes]) -> str:
    kind, content = element
    return content.decode(_TEXTS[kind]) if kind in _TEXTS else "".join(map(chr, _numbers(element)))
