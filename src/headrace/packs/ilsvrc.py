"""ILSVRC2012 as it is downloaded: with the keys, labels and order of the extracted ImageFolder tree."""

from __future__ import annotations

import io
import os
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headrace.errors import ConfigError, PackError
from headrace.packs.folders import extension_of, stem_of
from headrace.packs.records import Input, Record, Sample
from headrace.sources.reading import read_part
from headrace.sources.tar_samples import read_members

TRAIN, VAL = "ILSVRC2012_img_train", "ILSVRC2012_img_val"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

# Of a file in the devkit, decompressed; the largest has 200,000.
MOST_BYTES = 64_000_000

# Of MATLAB 5 files: bytes before the first element, and the kind of an element that is compressed.
MAT_HEADER, MAT_COMPRESSED = 128, 15

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

    def records(self) -> list[Record]:
        """See `Input`."""
        images = sorted(self._of_train() if self.kind == TRAIN else self._of_val())
        self.classes = tuple(sorted({wnid for wnid, *_ in images}))
        labels = {wnid: label for label, wnid in enumerate(self.classes)}
        stamp = self._path.stat().st_mtime_ns
        return [
            Record(f"{wnid}/{stem_of(name)}", size, stamp, (labels[wnid], extension_of(name), offset))
            for wnid, name, offset, size in images
        ]

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        label, extension, offset = record.place
        image = read_part(self._path, offset, record.size)
        if len(image) != record.size:
            raise PackError(f"{self._path} ends in the middle of {record.key}: download it again.")
        return Sample(record.key, extension, image, label)

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
        synsets = read_synsets(files[_META])
        wnids = {int(s["ILSVRC2012_ID"]): str(s["WNID"]) for s in synsets if not int(s["num_children"])}
        return [wnids[int(line)] for line in files[_TRUTH].split()]
    except ConfigError:
        raise
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


def read_synsets(data: bytes) -> Any:
    """The variable ``synsets`` of a MATLAB 5 file: an array with a row per synset, and fields by name.

    Raises:
        ValueError: it isn't such a file, or its elements are larger than the file can be.
        ConfigError: SciPy isn't installed.
    """
    try:
        from scipy.io import loadmat
    except ImportError as error:
        raise ConfigError(f"Reading {DEVKIT} needs SciPy: pip install scipy.") from error
    try:
        _refuse_bombs(data)
        synsets = loadmat(io.BytesIO(data), variable_names=["synsets"], squeeze_me=True)["synsets"]
    except Exception as error:  # SciPy raises anything for a damaged file
        raise ValueError(f"its {_META} can't be used: {error!r}") from error
    if synsets.dtype.names is None:
        raise ValueError(f"the synsets of its {_META} have no fields")
    return np.atleast_1d(synsets)


def _refuse_bombs(data: bytes) -> None:
    """Raises ValueError where an element of a MATLAB 5 file is decompressed to more than MOST_BYTES."""
    at = MAT_HEADER
    while at + 8 <= len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind == MAT_COMPRESSED:
            content = zlib.decompressobj().decompress(data[at + 8 : at + 8 + size], MOST_BYTES)
            if len(content) == MOST_BYTES:
                raise ValueError(f"it holds more than {MOST_BYTES:,} bytes once it is decompressed")
        at += 8 + size


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
