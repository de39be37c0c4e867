"""Sources of packs: image folders, torch datasets, packs, WebDataset shards, ILSVRC2012's downloads."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from PIL import Image
from torchvision.datasets import imagenet
from torchvision.datasets.folder import IMG_EXTENSIONS

from headrace.errors import ConfigError, PackError, printable
from headrace.packs.changes import Changes, Encoding, encoded
from headrace.packs.lmdb import LmdbInput
from headrace.packs.places import DiskFolder, Folder, StoreFolder
from headrace.packs.samples import Input, Item, Listing, Sample
from headrace.packs.stored import StoredPack
from headrace.sources.image import ImageDataset
from headrace.sources.pack_index import FILE_NAME
from headrace.sources.packed import open_index
from headrace.sources.reading import read_part
from headrace.sources.stores.client import is_url
from headrace.sources.tar_index import LMDB_FILE, is_lmdb, read_members

TRAIN, VAL = "ILSVRC2012_img_train", "ILSVRC2012_img_val"
DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"

# (wnid, name, offset, size) of an image in the tar file.
_Place = tuple[str, str, int, int]


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
    """The images of a folder, and files in the same folder that differ in nothing but the extension. Raises
    PackError if it has no class folders."""

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
    """The extension of a file's name, without the dot."""
    _, dot, extension = name.rpartition("/")[2].rpartition(".")
    return extension if dot else ""


def as_text(name: str) -> str:
    r"""A file's name as text; bytes that aren't UTF-8 become ``\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def dataset_input(dataset: Any, changes: Changes) -> SamplesInput | ImagesInput:
    """The input for a dataset. Raises ConfigError if it returns images without naming their files, and no
    encoding was specified."""
    samples = getattr(dataset, "samples", None)
    if isinstance(dataset, ImageDataset):
        source = dataset.source
        samples = [(source.path(i), source.label(i)) for i in range(len(source))]
    if samples is not None:
        return SamplesInput(dataset, list(samples))
    if changes.reencode is None:
        raise ConfigError(
            f"{type(dataset).__name__} has no `samples` (paths and labels) to take files from: pass"
            " reencode='png' (lossless) or 'jpeg' to pack the images that it returns."
        )
    return ImagesInput(dataset, changes.reencode, changes.quality)


class SamplesInput(FilesInput):
    """The files that a dataset lists as (path, label), as ImageFolder does; its transforms aren't applied."""

    def __init__(self, dataset: Any, samples: list[tuple[Any, int]]) -> None:
        super().__init__(DiskFolder(""))
        self.kind = type(dataset).__name__
        # torchvision's ImageNet has tuples of words there; the folders' names are its `wnids`.
        names = getattr(dataset, "wnids", None) or getattr(dataset, "classes", None) or ()
        self.classes = tuple(str(name) for name in names)
        self._root = getattr(dataset, "root", None)
        self._samples = [(os.path.abspath(os.fsdecode(path)), int(label)) for path, label in samples]

    def items(self) -> Listing:
        if not self._samples:
            return Listing.of(())
        paths = [path for path, _ in self._samples]
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
        if isinstance(self._root, (str, os.PathLike)):
            root = os.path.commonpath([root, os.path.abspath(self._root)])
        counts = Counter(map(stem_of, paths))
        stems = (stem_of(path) if counts[stem_of(path)] == 1 else path for path in paths)
        return Listing.of(
            self.item(os.path.relpath(stem, root), label, [path])
            for stem, (path, label) in zip(stems, self._samples, strict=True)
        )


class ImagesInput(Input):
    """The (PIL image, label) pairs that a dataset returns, encoded. One thread at a time calls it."""

    def __init__(self, dataset: Any, encoding: Encoding, quality: int | None) -> None:
        self.kind = type(dataset).__name__
        self.classes = tuple(str(name) for name in getattr(dataset, "classes", ()))
        self._dataset = dataset
        self._encoding = encoding
        self._quality = quality
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset, self._encoding, self._quality)

    def modified_ns(self, items: Listing) -> None:
        """Returns None: the images are those that the dataset returns."""

    def items(self) -> Listing:
        # Sizes aren't known before the images are encoded: all are taken to be as the first.
        count = len(self._dataset)
        size = len(self._sample("0", 0).image) if count else 0
        return Listing.of(Item(f"{i:08}", size, 0, i) for i in range(count))

    def read(self, item: Item) -> Sample:
        return self._sample(item.key, item.number)

    def _sample(self, key: str, index: int) -> Sample:
        try:
            with self._lock:
                image, label = self._dataset[index]
            label = int(label)
        except Exception as error:  # whatever the user's code raises, with the place where it does
            raise PackError(f"Sample {index} of {self.kind} can't be loaded: {error!r}.") from error
        if not isinstance(image, Image.Image):
            raise PackError(
                f"Sample {index} of {self.kind} is {type(image).__name__}, not a PIL image: remove the"
                " transform that converts it."
            )
        data = encoded(image, self._encoding, self._quality)
        return Sample(key, "jpg" if self._encoding == "jpeg" else "png", data, label)


class PackInput(Input):
    """The samples of a pack or of WebDataset shards, all of their fields included. Raises PackError if `src`
    is neither a pack's folder or URL, nor a .tar file or a folder of them."""

    def __init__(self, src: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> None:
        self._arguments = (src, options)
        self._pack = StoredPack.open(src, options) if is_url(src) else StoredPack(open_index(src))
        is_pack = self._pack.in_store or (Path(src) / FILE_NAME).is_file()
        self.kind = "pack" if is_pack else "WebDataset"
        self.classes = self._pack.index.about.classes

    def __reduce__(self) -> tuple[Any, ...]:
        # Each process maps the index itself.
        return type(self), self._arguments

    def items(self) -> Listing:
        index = self._pack.index
        if index.numbers("shard").max(initial=0) >= max(1, len(index.about.shards)):
            raise PackError(f"{index.path} is damaged: rows are in none of its shards. Make it again.")
        items = Listing.of(self._items([""] * len(index.about.shards)))
        if items.repeated_key() is None:
            return items
        # WebDataset requires unique keys within a shard only.
        return Listing.of(self._items([f"{Path(shard.name).stem}/" for shard in index.about.shards]))

    def _items(self, prefixes: Sequence[str]) -> Iterator[Item]:
        """Yields the item of each row; its key is prefixed by that of its shard."""
        index, stamps = self._pack.index, self._pack.stamps()
        shards, sizes = (map(int, index.numbers(name)) for name in ("shard", "sample_size"))
        keys = chain.from_iterable(index.keys(None))
        for row, (key, shard, size) in enumerate(zip(keys, shards, sizes, strict=True)):
            yield Item(prefixes[shard] + key, size, stamps[shard], row)

    def read(self, item: Item) -> Sample:
        return replace(self._pack.sample(item.number), key=item.key)

    def modified_ns(self, items: Listing) -> int | None:
        return None if self._pack.in_store else super().modified_ns(items)

    def notes(self) -> list[str]:
        left_out = self._pack.index.about.samples_without_image
        return [f"{left_out:,} samples have no image: left out."] if left_out else []


class IlsvrcInput(Input):
    """The images of ILSVRC2012's train or val tar file, under its own name, with keys, labels and order of
    the extracted tree; val needs the devkit in the same folder."""

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
        """Yields all images of val, whose classes the devkit lists in the order of their names."""
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


def open_input(src: Any, changes: Changes, storage_options: Mapping[str, Any] | None = None) -> Input:
    """The input for `src`; raises as `headrace.pack`."""
    if is_url(src):
        return _of_store(src, storage_options)
    if not isinstance(src, (str, os.PathLike)):
        return dataset_input(src, changes)
    path = Path(src)
    if not path.exists():
        raise PackError(f"{path} doesn't exist.")
    return _of_folder(path) if path.is_dir() else _of_file(path)


def _of_store(url: str, options: Mapping[str, Any] | None) -> Input:
    folder = StoreFolder(url, options)
    names = [file.name for file in folder.list() if "/" not in file.name]
    if FILE_NAME in names:
        return PackInput(url, options)
    if any(name.endswith(".tar") for name in names):
        raise PackError(
            f"{url} holds .tar files without an index: only folders of class folders and packs are read from"
            " stores. Run headrace index on the shards before they are uploaded."
        )
    return FolderInput(folder)


def _of_folder(path: Path) -> Input:
    if (path / FILE_NAME).is_file():
        return PackInput(path)
    if (path / LMDB_FILE).is_file():
        return LmdbInput.of(path)
    downloads = [tar for name in (TRAIN, VAL) for tar in path.glob(f"{name}.tar")]
    if len(downloads) == 2:
        raise PackError(f"{path} holds two data sets: pack {downloads[0]} and {downloads[1]} one by one.")
    if downloads:
        return IlsvrcInput(downloads[0])
    return PackInput(path) if any(path.glob("*.tar")) else FolderInput(DiskFolder(path))


def _of_file(path: Path) -> Input:
    if is_lmdb(path):
        return LmdbInput.of(path)
    if path.suffix != ".tar":
        raise PackError(f"{path} is neither a folder, a .tar file nor an LMDB (.mdb, .lmdb).")
    return IlsvrcInput(path) if path.stem in (TRAIN, VAL) else PackInput(path)
