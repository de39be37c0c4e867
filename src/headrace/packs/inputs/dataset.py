"""Torch datasets: the files behind them where they tell, else the images that they give, encoded."""

from __future__ import annotations

import os
import threading
from typing import Any

from PIL import Image

from headrace.errors import ConfigError, PackError
from headrace.packs.changes import Changes, Encoding, encoded
from headrace.packs.inputs.files import file_record, read_record, stem_of
from headrace.packs.records import Record, Sample
from headrace.sources.image import ImageDataset


def dataset_input(dataset: Any, changes: Changes) -> SamplesInput | ImagesInput:
    """The input for a dataset.

    Raises:
        ConfigError: it gives images without telling their files, and no encoding was asked for.
    """
    samples = getattr(dataset, "samples", None)
    if isinstance(dataset, ImageDataset):
        source = dataset.source
        samples = [(source.path(i), source.label(i)) for i in range(len(source))]
    if samples is not None:
        return SamplesInput(dataset, list(samples))
    if changes.reencode is None:
        raise ConfigError(
            f"{type(dataset).__name__} has no `samples` (paths and labels) to take files from: pass"
            " reencode='png' (without loss) or 'jpeg' to pack the images that it gives."
        )
    return ImagesInput(dataset, changes.reencode, changes.quality)


class SamplesInput:
    """The files that a dataset lists as (path, label), as ImageFolder does; its transforms aren't applied."""

    def __init__(self, dataset: Any, samples: list[tuple[Any, int]]) -> None:
        self.kind = type(dataset).__name__
        # torchvision's ImageNet has tuples of words there; the folders' names are its `wnids`.
        names = getattr(dataset, "wnids", None) or getattr(dataset, "classes", None) or ()
        self.classes = tuple(str(name) for name in names)
        self._root = getattr(dataset, "root", None)
        self._samples = [(os.path.abspath(os.fsdecode(path)), int(label)) for path, label in samples]

    def records(self) -> list[Record]:
        """See `Input`."""
        if not self._samples:
            return []
        paths = [path for path, _ in self._samples]
        root = os.path.commonpath([os.path.dirname(path) for path in paths])
        if isinstance(self._root, (str, os.PathLike)):
            root = os.path.commonpath([root, os.path.abspath(self._root)])
        counts: dict[str, int] = {}
        for path in paths:
            counts[stem_of(path)] = counts.get(stem_of(path), 0) + 1
        records = []
        for path, label in self._samples:
            stem = stem_of(path) if counts[stem_of(path)] == 1 else path
            records.append(file_record("", os.path.relpath(stem, root), label, [path]))
        return records

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        return read_record("", record)

    def notes(self) -> list[str]:
        """See `Input`."""
        return []


class ImagesInput:
    """The (PIL image, label) that a dataset gives, encoded. It is asked by one thread at a time."""

    def __init__(self, dataset: Any, encoding: Encoding, quality: int | None) -> None:
        self.kind = type(dataset).__name__
        self.classes = tuple(str(name) for name in getattr(dataset, "classes", ()))
        self._dataset = dataset
        self._encoding = encoding
        self._quality = quality
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset, self._encoding, self._quality)

    def records(self) -> list[Record]:
        """See `Input`. Sizes aren't known before the images are encoded: all are taken to be as the first."""
        count = len(self._dataset)
        size = len(self._sample("0", 0).image) if count else 0
        return [Record(f"{i:08}", size, 0, i) for i in range(count)]

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        return self._sample(record.key, record.place)

    def notes(self) -> list[str]:
        """See `Input`."""
        return []

    def _sample(self, key: str, index: int) -> Sample:
        try:
            with self._lock:
                image, label = self._dataset[index]
            label = int(label)
        except Exception as error:  # whatever the user's code raises, with the place where it does
            raise PackError(f"Sample {index} of {self.kind} can't be had: {error!r}.") from error
        if not isinstance(image, Image.Image):
            raise PackError(
                f"Sample {index} of {self.kind} is {type(image).__name__}, not a PIL image: take away the"
                " transform that makes it one."
            )
        data = encoded(image, self._encoding, self._quality)
        return Sample(key, "jpg" if self._encoding == "jpeg" else "png", data, label)
