"""What is known of each image of a split: flat arrays, filled in by whoever lists, reads and decodes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from headrace._arrow import pa

# Names that are text at a time.
CHUNK = 1 << 16


class State(IntEnum):
    """What a file is fit for."""

    UNSEEN = 0  # it is there; it wasn't opened
    GOOD = 1  # decoded to the last pixel
    LINK = 2  # a link whose target isn't there
    UNREADABLE = 3  # by this user, or by the storage
    EMPTY = 4  # 0 bytes
    ALIEN = 5  # no image
    CUT = 6  # ends before its image does
    DAMAGED = 7  # Pillow raises for other reasons
    BROKEN = 8  # Pillow decodes it without a word, though data is missing or impossible
    DOUBTFUL = 9  # the same, where only the number of bytes is odd: it may be harmless
    HUGE = 10  # more pixels than Pillow takes


# Those that raise an error in an epoch.
FAILING = (
    State.LINK,
    State.UNREADABLE,
    State.EMPTY,
    State.ALIEN,
    State.CUT,
    State.DAMAGED,
    State.HUGE,
)


@dataclass(eq=False)
class Pictures:
    """The n files of a split that ImageFolder takes, in its order.

    Attributes:
        names: [n] of bytes: paths below the split's folder.
        labels: int32 [n]; -1: it lies in no class folder.
        sizes: int64 [n], in bytes.
        states: uint8 [n] of `State`.
        widths, heights: uint32 [n], in pixels; 0: not known.
        kinds: int16 [n]: which of `kind_names`; -1: not known.
        digests: uint64 [n], of the content; 0: not made, as no other file has this size.
        kind_names: (format, mode), as Pillow names them: ("JPEG", "RGB").
        reasons: more about single files, by number.
    """

    names: pa.LargeBinaryArray
    labels: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int64]
    states: npt.NDArray[np.uint8]
    widths: npt.NDArray[np.uint32] = field(init=False)
    heights: npt.NDArray[np.uint32] = field(init=False)
    kinds: npt.NDArray[np.int16] = field(init=False)
    digests: npt.NDArray[np.uint64] = field(init=False)
    kind_names: list[tuple[str, str]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = len(self.labels)
        self.widths, self.heights = np.zeros(n, np.uint32), np.zeros(n, np.uint32)
        self.kinds, self.digests = np.full(n, -1, np.int16), np.zeros(n, np.uint64)

    @classmethod
    def joined(cls, parts: Sequence[Pictures]) -> Pictures:
        """Of several folders one after the other, as listed: what decoding tells isn't taken over."""
        empty = np.zeros(0, np.uint8)
        joined = cls(
            pa.concat_arrays([pa.array([], pa.large_binary()), *(part.names for part in parts)]),
            np.concatenate([empty, *(part.labels for part in parts)]).astype(np.int32),
            np.concatenate([empty, *(part.sizes for part in parts)]).astype(np.int64),
            np.concatenate([empty, *(part.states for part in parts)]),
        )
        first = 0
        for part in parts:
            joined.reasons.update((first + i, why) for i, why in part.reasons.items())
            first += len(part)
        return joined

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """The path of file `i` below the split's folder."""
        return os.fsdecode(self.names[i].as_py())

    def each_name(self) -> Iterator[str]:
        """All of them; few are text at a time."""
        for start in range(0, len(self), CHUNK):
            yield from map(os.fsdecode, self.names[start : start + CHUNK].to_pylist())

    def extensions(self) -> Counter[str]:
        """Files by extension, as they are written, with its dot."""
        return Counter(os.path.splitext(name)[1] for name in self.each_name())


@dataclass(eq=False)
class Split:
    """One folder of class folders, or of images.

    Attributes:
        name: "train", "val", "test"; empty: not told by the folder's name.
        path: of the folder.
        classes: names of the class folders, in ImageFolder's order; empty: images lie in `path` itself.
        images: what ImageFolder takes for samples.
        passed_over: files whose extension ImageFolder doesn't take, below `path`.
        images_passed_over: those of them that begin as images do.
        loose: images beside the class folders, which ImageFolder doesn't see.
        closed: (folder below `path`, why) that can't be listed.
        loops: folders below `path` that are links to a folder above them.
        lost_folders: links in `path` whose target isn't there.
    """

    name: str
    path: str
    classes: tuple[str, ...]
    pictures: Pictures
    passed_over: list[str] = field(default_factory=list)
    images_passed_over: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    lost_folders: list[str] = field(default_factory=list)

    def counts(self) -> npt.NDArray[np.int64]:
        """Images of each class, [classes]."""
        labels = self.pictures.labels
        known = labels[(labels >= 0) & (labels < len(self.classes))]
        return np.bincount(known, minlength=len(self.classes))
