"""ILSVRC2012 as it is downloaded: with the keys, labels and order of the extracted ImageFolder tree."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchvision.datasets import imagenet

from headrace.errors import ConfigError, PackError
from headrace.packs.folders import extension_of, stem_of
from headrace.packs.listing import Item, Listing
from headrace.packs.samples import Input, Sample
from headrace.sources.reading import read_part
from headrace.sources.tar_index import read_members

TRAIN, VAL = "ILSVRC2012_img_train", "ILSVRC2012_img_val"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

# (wnid, name, offset, size) of an image in the tar file.
_Place = tuple[str, str, int, int]


class IlsvrcInput(Input):
    """The images of the train or the val tar file, read from inside it.

    Args:
        path: path of the tar file, under its own name; val needs the devkit in the same folder.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kind = path.name.partition(".")[0]

    def items(self) -> Listing:
        images = sorted(self._of_train() if self.kind == TRAIN else self._of_val())
        self.classes = tuple(sorted({wnid for wnid, *_ in images}))
        self._labels = {wnid: label for label, wnid in enumerate(self.classes)}
        stamp = self._path.stat().st_mtime_ns
        return Listing.of(
            Item(f"{wnid}/{stem_of(name)}", size, stamp, offset, (wnid, name))
            for wnid, name, offset, size in images
        )

    def read(self, item: Item) -> Sample:
        wnid, name = item.names
        image = read_part(self._path, item.number, item.size)
        if len(image) != item.size:
            raise PackError(f"{self._path} ends in the middle of {item.key}: download it again.")
        return Sample(item.key, extension_of(name), image, self._labels[wnid])

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
        wnids = devkit_meta(self._path.with_name(DEVKIT))[1]
        if len(members) != len(wnids):
            raise PackError(
                f"{self._path} holds {len(members):,} images, and {DEVKIT} labels {len(wnids):,}."
            )
        for member, wnid in zip(members, wnids, strict=True):
            yield wnid, os.path.basename(member.name), member.offset_data, member.size


def devkit_meta(devkit: Path) -> tuple[dict[str, Any], list[str]]:
    """(names by wnid, the wnid of each validation image), as torchvision's ImageNet reads them, once the file
    has the MD5 of the one that is downloaded. Raises PackError, and ConfigError without scipy."""
    if not devkit.is_file():
        raise PackError(f"{devkit} isn't there: it says which classes the validation images are of.")
    try:
        with tempfile.TemporaryDirectory() as folder:  # where torchvision keeps what it has read
            os.symlink(devkit.absolute(), Path(folder) / DEVKIT)
            imagenet.parse_devkit_archive(folder)
            meta: tuple[dict[str, Any], list[str]] = imagenet.load_meta_file(folder)
            return meta
    except ImportError as error:
        raise ConfigError(f"{devkit} needs scipy to be read: pip install scipy.") from error
    except RuntimeError as error:
        raise PackError(
            f"{devkit} can't be read as ILSVRC2012's devkit: it is damaged, or another file. Fetch it again."
        ) from error
