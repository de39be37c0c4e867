"""An ImageFolder tree: the samples, order and labels that torchvision gives it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torchvision.datasets.folder import IMG_EXTENSIONS

from headrace.errors import printable
from headrace.packs.inputs.files import as_text, extension_of, stem_of
from headrace.packs.inputs.tree import Tree
from headrace.packs.records import Record, Sample

# Kinds of left-out files that a note names.
NAMED = 5


class FolderInput:
    """The images of `tree`, and files beside them that differ in nothing but the extension.

    Raises:
        PackError: it has no class folders.
    """

    kind = "ImageFolder"

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._folders = tree.classes()
        self.classes = tuple(as_text(name) for name in self._folders)
        self._left_out: Counter[str] = Counter()

    def records(self) -> list[Record]:
        """See `Input`."""
        self._left_out.clear()
        return [
            record
            for label, folder in enumerate(self._folders)
            for below, names in self._tree.walk(folder)
            for record in self._of_folder(below, names, label)
        ]

    def read(self, record: Record) -> Sample:
        """See `Input`."""
        return self._tree.read(record)

    def notes(self) -> list[str]:
        """See `Input`."""
        if not self._left_out:
            return []
        kinds = [f"{printable(kind)} ({count:,})" for kind, count in self._left_out.most_common(NAMED)]
        rest = ["others"] if len(self._left_out) > NAMED else []
        total = sum(self._left_out.values())
        return [f"{total:,} files that ImageFolder ignores were left out: {', '.join(kinds + rest)}"]

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
            yield self._tree.record(f"{below}/{stem}", label, paths)
