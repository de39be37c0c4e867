"""A torch dataset of image files and labels, for data that doesn't lie in one folder per class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from headrace.errors import ConfigError, printable
from headrace.sources.folder import ImageSource
from headrace.sources.reading import load_file
from headrace.sources.stores.client import is_url

# How many bad paths an error names: enough to see the pattern, few enough to read.
NAMED = 5


class SourceDataset(Dataset[tuple[Any, Any]]):
    """The base of Headrace's own datasets: (transform(image), target_transform(label)) by index.

    Attributes:
        source: files and labels.
        transform: called with each RGB PIL image, or None for the image itself.
        target_transform: called with each label, or None for the label itself.
    """

    source: Any
    transform: Callable[[Any], Any] | None
    target_transform: Callable[[int], Any] | None

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """(transform(image), target_transform(label)) of sample `index`; negative ones count from the end."""
        i = self._position(index)
        image: Any = load_file(self.source.open(i))
        target: Any = self.source.label(i)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return image, target

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={len(self)})"

    def _position(self, index: int) -> int:
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of range for {n} samples")
        return index % n


class ImageDataset(SourceDataset):
    """Image files and their labels, as a torch dataset of (transform(image), label).

    Differs from `torchvision.datasets.ImageFolder` in where the list comes from: you give it. An image is
    read as there: ``Image.open(path).convert("RGB")``. `headrace.DataLoader` runs it natively if the
    transform allows; in any other loader it is an ordinary dataset.

    Args:
        paths: the files, as str, bytes or os.PathLike; or URLs of objects in one kind of store
            (``s3://bucket/a.jpg``, ``gs://``, ``az://``, ``https://``), which are fetched as a remote pack's
            samples are. A pack is faster: here the size of each object is requested first.
        labels: one int per path, or None for 0 in every sample.
        transform: called with each RGB PIL image, or None for the image itself.
        target_transform: called with each label, or None for the label itself.
        check_files: whether to raise now for files that are missing or unreadable, at the cost of two system
            calls per file; URLs are never checked. False (the default): the error comes when such a file is
            read, and names it.
        storage_options, cache_dir, cache_bytes: for URLs; see `headrace.PackedDataset`.

    Raises:
        ConfigError: the numbers of paths and labels differ, a label isn't an int, or, with `check_files`,
            files are unreadable.
        FileNotFoundError: with `check_files`, files are missing.

    Examples:
        >>> dataset = ImageDataset([], [])
        >>> len(dataset)
        0
    """

    def __init__(
        self,
        paths: Iterable[str | bytes | os.PathLike[Any]],
        labels: Sequence[int] | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        check_files: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        listed = list(paths)
        self.source = _make_source(listed, labels)
        self.transform = transform
        self.target_transform = target_transform
        if _are_urls(listed):
            # Imported here because files don't need what these import.
            from headrace.sources.remote import RemoteImageSource
            from headrace.sources.stores.access import Access

            access = Access(str(listed[0]), storage_options, cache_dir, cache_bytes)
            self.source = RemoteImageSource.of(self.source, access)
            return
        if storage_options or cache_dir is not None or cache_bytes is not None:
            raise ConfigError(
                "storage_options, cache_dir and cache_bytes are for URLs; these paths are files."
            )
        if check_files:
            _check_files(self.source)


def _make_source(paths: list[Any], labels: Any) -> ImageSource:
    if labels is None:
        labels = [0] * len(paths)
    elif hasattr(labels, "tolist"):
        # Arrays and tensors hold the numbers that their elements, seen one by one, only wrap.
        labels = labels.tolist()
    if len(labels) != len(paths):
        raise ConfigError(f"{len(paths)} paths and {len(labels)} labels: there must be one label per path.")
    try:
        return ImageSource.from_samples(list(zip(paths, labels, strict=True)))
    except ValueError as error:
        raise ConfigError(f"{error}. Pass paths as str or os.PathLike, and labels as ints.") from None


def _are_urls(paths: list[Any]) -> bool:
    """Raises ConfigError if some are and some aren't."""
    urls = [is_url(path) for path in paths]
    if any(urls) and not all(urls):
        path, url = paths[urls.index(False)], paths[urls.index(True)]
        raise ConfigError(f"{path!r} is a file and {url!r} a URL: a dataset is of one or the other.")
    return any(urls)


def _check_files(source: ImageSource) -> None:
    missing: list[str] = []
    unreadable: list[str] = []
    for i in range(len(source)):
        path = source.path(i)
        if not os.access(path, os.R_OK):
            (unreadable if os.path.exists(path) else missing).append(path)
        elif os.path.isdir(path):
            unreadable.append(path)
    advice = "Correct the list, or pass check_files=False to find out while loading."
    if missing:
        raise FileNotFoundError(f"{_named(missing, 'missing', len(source))}. {advice}")
    if unreadable:
        raise ConfigError(f"{_named(unreadable, 'unreadable or a folder', len(source))}. {advice}")


def _named(paths: list[str], what: str, total: int) -> str:
    shown = ", ".join(printable(path) for path in paths[:NAMED])
    rest = f" and {len(paths) - NAMED} more" if len(paths) > NAMED else ""
    return f"{len(paths)} of {total} files are {what}: {shown}{rest}"
