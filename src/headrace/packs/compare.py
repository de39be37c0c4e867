"""Compares the samples of a pack with those of its source."""

from __future__ import annotations

import io
from collections.abc import Iterator

from PIL import Image

from headrace.packs.records import Input, Sample
from headrace.packs.rows import PILLOW_ERRORS
from headrace.sources.pack_index import PackIndex


class Comparison:
    """A pack and its source.

    Args:
        source: what the pack was made from.
        index: of the pack.

    Raises:
        PackError: the source can't be listed.
    """

    def __init__(self, source: Input, index: PackIndex) -> None:
        made = index.about.made
        self._source = source
        self._changed = any(made.get(name) for name in ("optimize", "reencode", "max_side"))
        self._lossy = bool(made.get("max_side")) or made.get("reencode") == "jpeg"
        self._records = {record.key: record for record in source.records()}
        self._seen: set[str] = set()
        self._not_compared: list[str] = []
        self.classes_differ = bool(source.classes) and index.about.classes != source.classes

    def differences(self, packed: Sample) -> Iterator[str]:
        """What differs in one sample of the pack. Called by several threads at once. Raises PackError."""
        record = self._records.get(packed.key)
        if record is None:
            yield "isn't in the source"
            return
        self._seen.add(packed.key)
        original = self._source.read(record)
        if original.label != packed.label:
            yield f"has label {packed.label}, and in the source {original.label}"
        if _other(original) != _other(packed):
            yield "its further fields differ from the source's"
        if original.image != packed.image:
            yield from self._of_images(packed.key, original.image, packed.image)

    def missing(self) -> list[str]:
        """Keys of the source that the pack lacks, once all of its samples were compared."""
        return [key for key in self._records if key not in self._seen]

    def notes(self) -> list[str]:
        """What else to know, for people."""
        count = len(self._not_compared)
        return (
            [f"{count:,} images were encoded anew with loss: their pixels were not compared."]
            if count
            else []
        )

    def _of_images(self, key: str, original: bytes, packed: bytes) -> Iterator[str]:
        if not self._changed:
            yield "its image's bytes differ from the source's"
        elif self._lossy:
            self._not_compared.append(key)
        else:
            try:
                equal = _pixels(original) == _pixels(packed)
            except PILLOW_ERRORS as error:
                yield f"its image differs from the source's, and Pillow can't decode one of them: {error}"
                return
            if not equal:
                yield "its pixels differ from the source's"


def _other(sample: Sample) -> list[tuple[str, bytes]]:
    """All fields but the label, which sources may keep in another form."""
    return sorted(field for field in sample.fields if field[0] != "cls")


def _pixels(data: bytes) -> tuple[tuple[int, int], bytes]:
    with Image.open(io.BytesIO(data)) as image:
        return image.size, image.convert("RGB").tobytes()
