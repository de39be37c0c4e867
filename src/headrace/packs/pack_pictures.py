"""The pictures of a pack, as those of a folder are surveyed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PackError
from headrace.measure.pictures import Pictures, Split, State
from headrace.packs.decoding import decode_all
from headrace.packs.stored import read_image
from headrace.sources.pack_index import FILE_NAME, PackIndex


def open_pack(path: str) -> tuple[PackIndex, Split]:
    """The index of the pack in the folder `path`, and what it tells of the pictures.

    Raises:
        PackError: it is missing or damaged.
    """
    index = PackIndex(Path(path) / FILE_NAME)
    try:
        index.batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise PackError(
            f"{index.path} is damaged: {error}. Make it again by headrace index or pack."
        ) from None
    names = pc.binary_join_element_wise(
        index.batch["key"], index.batch["extension"], pa.scalar(".", pa.large_string())
    )
    pictures = Pictures(
        names.cast(pa.large_binary()),
        index.numbers("label").astype(np.int32),
        index.numbers("size").astype(np.int64),
        np.full(len(index), State.UNSEEN, np.uint8),
    )
    pictures.widths = index.numbers("width").astype(np.uint32)
    pictures.heights = index.numbers("height").astype(np.uint32)
    labels = pictures.labels
    classes = index.about.classes or tuple(str(label) for label in range(int(labels.max(initial=-1)) + 1))
    return index, Split("", path, classes, pictures)


def decode_pack(
    index: PackIndex,
    split: Split,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Fills in what decoding tells; see `decode_all`. A record that can't be read stays unseen."""

    def read(split: Split, row: int) -> bytes | None:
        try:
            return read_image(index, row)
        except (OSError, IndexError, ValueError, OverflowError, MemoryError) as error:  # told by verify too
            split.pictures.reasons[row] = str(error)
            return None

    decode_all([split], workers=workers, progress=progress, read=read)
