"""ImageFolder trees as a source of packs: the samples, order and labels that torchvision gives them."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from torchvision.datasets.folder import IMG_EXTENSIONS

from headrace.errors import PackError, printable
from headrace.packs.listing import Item, Listing
from headrace.packs.places import Folder
from headrace.packs.samples import Input, Sample

# Kinds of left-out files that a note names.
NAMED = 5


class FilesInput(Input):
    """Samples whose images and fields are files of a folder, each item's first name being the image."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._modified_ns = 0

    def modified_ns(self, items: Listing) -> int | None:
        del items  # `item` has seen them
        return self._modified_ns

    def item(self, key: str, label: int, names: Sequence[str]) -> Item:
        """Describes a sample before it is read. Raises PackError if a file can't be read."""
        files = self._folder.find(names)
        stamp = modified_ns = max(file.modified_ns for file in files)
        if files[0].version:
            versions = "\0".join(file.version for file in files).encode()
            stamp = int.from_bytes(hashlib.sha256(versions).digest()[:8], "big", signed=True)
        self._modified_ns = max(self._modified_ns, modified_ns)
        return Item(as_text(key), sum(file.size for file in files), stamp, label, tuple(names))

    def read(self, item: Item) -> Sample:
        image, *others = item.names
        try:
            contents = [self._folder.read(name) for name in item.names]
        except PackError:
            raise
        except OSError as error:
            raise PackError(f"{printable(error.filename)} can't be read: {error.strerror}.") from error
        if sum(map(len, contents)) != item.size:
            place = printable(self._folder.at(image))
            raise PackError(f"{place} has changed while it was packed: run it again.")
        extensions = [as_text(extension_of(name)) for name in others]
        fields = tuple(zip(extensions, contents[1:], strict=True))
        return Sample(item.key, as_text(extension_of(image)), contents[0], item.number, fields)


class FolderInput(FilesInput):
    """The images of a folder, and files in the same folder that differ in nothing but the extension.

    Raises:
        PackError: it has no class folders.
    """

    kind = "ImageFolder"

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self._names = folder.classes()
        self.classes = tuple(as_text(name) for name in self._names)
        self._left_out: Counter[str] = Counter()

    def items(self) -> Listing:
        self._left_out.clear()
        return Listing.of(
            item
            for label, class_name in enumerate(self._names)
            for place, names in self._folder.walk(class_name)
            for item in self._of_place(place, names, label)
        )

    def notes(self) -> list[str]:
        if not self._left_out:
            return []
        kinds = [f"{printable(kind)} ({count:,})" for kind, count in self._left_out.most_common(NAMED)]
        rest = ["others"] if len(self._left_out) > NAMED else []
        total = sum(self._left_out.values())
        return [f"{total:,} files that ImageFolder ignores were left out: {', '.join(kinds + rest)}"]

    def _of_place(self, place: str, names: list[str], label: int) -> Iterator[Item]:
        images = [name for name in names if name.lower().endswith(IMG_EXTENSIONS)]
        stems = Counter(stem_of(name) for name in images)
        fields: dict[str, list[str]] = {}
        for name in names:
            if name.lower().endswith(IMG_EXTENSIONS):
                continue
            # The label is ImageFolder's: a second one would contradict it.
            if stems[stem_of(name)] == 1 and extension_of(name) not in ("", "cls"):
                fields.setdefault(stem_of(name), []).append(name)
            else:
                self._left_out[extension_of(name) or "no extension"] += 1
        for name in images:
            # Files that differ in nothing but the extension keep it, so that their keys differ.
            stem = stem_of(name) if stems[stem_of(name)] == 1 else name
            others = fields.get(stem_of(name), ())
            yield self.item(f"{place}/{stem}", label, [f"{place}/{each}" for each in (name, *others)])


def stem_of(name: str) -> str:
    """`name` without its extension, or all of it if nothing would be left."""
    folder, slash, base = name.rpartition("/")
    return folder + slash + (base.rpartition(".")[0] or base)


def extension_of(name: str) -> str:
    """What follows the last dot of the file's name."""
    _, dot, extension = name.rpartition("/")[2].rpartition(".")
    return extension if dot else ""


def as_text(name: str) -> str:
    r"""A file's name as text; bytes that aren't UTF-8 become ``\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
