"""A pack as a torch dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from headrace.errors import ConfigError, PackError
from headrace.sources.image import SourceDataset
from headrace.sources.pack import PackSource
from headrace.sources.stores.client import is_url

if TYPE_CHECKING:  # pyarrow, which it needs, is optional
    from headrace.sources.pack_index import PackIndex

PathLike = str | os.PathLike[str]


class PackedDataset(SourceDataset):
    """The samples of a pack, as a map-style dataset of (transform(image), label).

    Used like `torchvision.datasets.ImageFolder`: the same images, labels, `classes`, `class_to_idx` and
    `targets` like the folder that was packed. `headrace.DataLoader` reads it natively if the transform
    allows; in any other loader it is an ordinary dataset. The index is memory-mapped: opening costs the same
    for any number of samples.

    Needs ``pip install 'headrace[packs]'``. A pack in an object store is named by its URL, and also needs
    ``pip install 'headrace[remote]'``: its index is fetched once per node, its samples as they are needed,
    into a cache on local disk that all processes of the node share; see docs/remote.md.

    Args:
        path: the folder that `headrace pack` made, or its URL (``s3://bucket/folder``, ``gs://``, ``az://``,
            ``https://``); or WebDataset shards made by others: a folder of .tar
            files, one of them, or a list. Those are scanned once, and the index is kept in
            ``~/.cache/headrace``; `headrace index` makes one with entry points.
        transform: called with each RGB PIL image, or None for the image itself.
        target_transform: called with each label (an int, -1 if the pack has none), or None for the label.
        storage_options: of the store, in addition to those of the environment (as ``AWS_ENDPOINT_URL``):
            settings of obstore by name (``endpoint``, ``region``, ``skip_signature``, …), its
            ``client_options`` (``read_timeout``: "15s" by default, …), ``credential_provider``, and
            ``retry_config`` (``max_retries``, ``retry_timeout``, ``backoff``).
        cache_dir: where indexes and samples are kept, on a local disk, or None for ``~/.cache/headrace``.
        cache_bytes: what samples may take there, or None for half of the disk that is free when the folder is
            first used.

    Raises:
        PackError: it isn't a pack; a shard is missing, cut short or another pack's; its index can't be had.
        ConfigError: options of the store are invalid, or pyarrow or obstore isn't installed.

    Examples:
        >>> import headrace
        >>> dataset = headrace.PackedDataset("imagenet.pack", transform)  # doctest: +SKIP
        >>> loader = headrace.DataLoader(dataset, batch_size=256, shuffle=True)  # doctest: +SKIP
    """

    def __init__(
        self,
        path: PathLike | Sequence[PathLike],
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[int], Any] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
        cache_dir: PathLike | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.root = path
        self.transform = transform
        self.target_transform = target_transform
        self._access: Any = None
        if is_url(path):
            # Only here: what it imports isn't needed for files.
            from headrace.sources.stores.access import Access

            self._access = Access(str(path), storage_options, cache_dir, cache_bytes)
        elif storage_options or cache_dir is not None or cache_bytes is not None:
            raise ConfigError(f"storage_options, cache_dir and cache_bytes are for URLs; {path!r} isn't one.")
        self.source = self._open()

    @property
    def index(self) -> PackIndex:
        """The pack's index."""
        index: PackIndex = self.source.index
        return index

    @property
    def classes(self) -> list[str]:
        """Names by label; empty if the pack doesn't know them."""
        return list(self.index.about.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Labels by name."""
        return {name: label for label, name in enumerate(self.index.about.classes)}

    @property
    def shard_boundaries(self) -> npt.NDArray[np.int64]:
        """[shards + 1]: shard s holds samples shard_boundaries[s] to shard_boundaries[s + 1] - 1; what
        `headrace.order.LocalShuffled` needs.
        """
        numbers = np.arange(len(self.index.about.shards) + 1)
        boundaries: npt.NDArray[np.int64] = np.searchsorted(self.source.extents.shards, numbers)
        return boundaries

    @cached_property
    def targets(self) -> list[int]:
        """The label of every sample, in order."""
        labels: list[int] = self.source.labels.tolist()
        return labels

    def key(self, index: int) -> str:
        """The key of sample `index`: for a packed ImageFolder its path below the root, without extension."""
        return self.index.text("key", self._position(index))

    def fields(self, index: int) -> dict[str, bytes]:
        """All members of sample `index` by extension, the image's too: ``{"jpg": …, "cls": b"7", …}``.

        Raises:
            PackError: the pack is an LMDB.
        """
        from headrace.sources.tar_index import samples_in

        i = self._position(index)
        if self.index.about.kind != "tar":
            raise PackError(f"{self.index.path}: only tar packs have further fields.")
        shard = self.source.shard(i)
        offset = int(self.index.numbers("sample_offset")[i])
        data = self.source.bytes_at(i, offset, int(self.index.numbers("sample_size")[i]))
        return {
            field.extension: data[field.offset : field.offset + field.size]
            for sample in samples_in(data, Path(shard))
            for field in sample.fields
        }

    def __repr__(self) -> str:
        left_out = self.index.about.samples_without_image
        more = f", {left_out} samples without an image left out" if left_out else ""
        return f"{type(self).__name__}(n={len(self)}, path={str(self.root)!r}{more})"

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes map the index themselves.
        return {name: value for name, value in self.__dict__.items() if name not in ("source", "targets")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.source = self._open()

    def _open(self) -> PackSource:
        if self._access is None:
            return PackSource.of(open_index(self.root))
        from headrace.sources.remote import RemotePackSource

        return RemotePackSource.at(str(self.root), self._access)


def open_index(path: PathLike | Sequence[PathLike]) -> PackIndex:
    """The index of a pack, or of shards without one (made if none is kept). Raises PackError, and
    ConfigError if pyarrow isn't installed.
    """
    from headrace.sources.pack_index import FILE_NAME, PackIndex
    from headrace.sources.tar_index import changed_shards, find_tar_index, resolved_shards

    if isinstance(path, (str, os.PathLike)):
        at = Path(path)
        inside = at / FILE_NAME
        if inside.is_file() or at.suffix == ".arrow":
            index = PackIndex(inside if inside.is_file() else at)
            changed = changed_shards(index)
            if changed:
                raise PackError(
                    f"{changed[0]} has changed since {index.path} was made. Make it again by headrace index."
                )
            return index
    return find_tar_index(resolved_shards(path))
