"""An ImageFolder tree: the samples, order and labels that torchvision gives it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from torchvision.datasets.folder import IMG_EXTENSIONS, find_classes

from headrace.errors import PackError, printable
from headrace.packs.inputs.files import as_text, extension_of, file_record, read_record, stem_of
from headrace.packs.records import Record, Sample

# Kinds of left-out files that a note names.
NAMED = 5


class FolderInput:
    """The images below `root`, and files beside them that differ in nothing but the extension.

    Args:
        root: a folder of class folders, as ImageFolder gets it.

    Raises:
        PackError: it has no class folders.
    """

    kind = "ImageFolder"

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)
        try:
            self._folders, self._labels = find_classes(self._root)
        except FileNotFoundError:
            raise PackError(
                f"{printable(self._root)} has no class folders: give the folder that ImageFolder gets, a"
                " folder of .tar shards, an LMDB, or an ILSVRC2012 tar file."
            ) from None
        except OSError as error:
            raise PackError(f"{printable(self._root)} can't be listed: {error.strerror}.") from error
        self.classes = tuple(as_text(name) for name in self._folders)
        self._left_out: Counter[str] = Counter()

    def records(self) -> list[Record]:
        """See `Input`."""
        self._left_out.clear()
        return [record for name in self._folders for record in self._of_class(name)]

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        return read_record(self._root, record)

    def notes(self) -> list[str]:
        """See `Input`."""
        if not self._left_out:
            return []
        kinds = [f"{printable(kind)} ({count:,})" for kind, count in self._left_out.most_common(NAMED)]
        rest = ["others"] if len(self._left_out) > NAMED else []
        total = sum(self._left_out.values())
        return [f"{total:,} files that ImageFolder ignores were left out: {', '.join(kinds + rest)}"]

    def _of_class(self, folder: str) -> Iterator[Record]:
        # ImageFolder sorts folders by their paths, and names within each.
        for place, _, names in sorted(os.walk(os.path.join(self._root, folder), followlinks=True)):
            below = os.path.relpath(place, self._root)
            yield from self._of_folder(below, sorted(names), self._labels[folder])

    def _of_folder(self, below: str, names: list[str], label: int) -> Iterator[Record]:
        images = [name for name in names if name.lower().endswith(IMG_EXTENSIONS)]
        stems = Counter(stem_of(name) for name in images)
        beside: dict[str, list[str]] = {}
        for name in names:
            if name.lower().endswith(IMG_EXTENSIONS):
                continue
            # The label is ImageFolder's: a second one would contradict it.
            if stems[stem_of(name)] == 1 and extension_of(name) not in ("", "cls"):
                beside.setdefault(stem_of(name), []).append(name)
            else:
                self._left_out[extension_of(name) or "no extension"] += 1
        for name in images:
            # Files that differ in nothing but the extension keep it, so that their keys differ.
            stem = stem_of(name) if stems[stem_of(name)] == 1 else name
            others = beside.get(stem_of(name), ())
            paths = [f"{below}/{each}" for each in (name, *others)]
            yield file_record(self._root, f"{below}/{stem}", label, paths)
