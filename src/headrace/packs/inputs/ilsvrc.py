"""ILSVRC2012 as it is downloaded: the same keys, labels and order as of the extracted ImageFolder tree."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import PackError
from headrace.packs.inputs.files import extension_of, stem_of
from headrace.packs.inputs.mat5 import read_structs
from headrace.packs.records import Record, Sample
from headrace.sources.reading import read_part
from headrace.sources.tar_samples import read_members

TRAIN, VAL = "ILSVRC2012_img_train", "ILSVRC2012_img_val"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

# Of a file in the devkit, decompressed; the largest has 200,000.
MOST_BYTES = 64_000_000

_TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"
_META = "data/meta.mat"

# (wnid, name, offset, size) of an image in the tar file.
_Place = tuple[str, str, int, int]


class IlsvrcInput:
    """The images of the train or the val tar file, read from inside it.

    Args:
        path: of the tar file, by its own name; val needs the devkit in the same folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kind = path.name.partition(".")[0]
        self.classes: tuple[str, ...] = ()

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

    def notes(self) -> list[str]:
        """See `Input`."""
        return []

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
        synsets = read_structs(files[_META], "synsets")
        # Leaves of the hierarchy are classes; the rest of the synsets is above them.
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
