"""Finds what native code can do for a dataset, with the reasons and notes that `explain()` prints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace._native.decoders import native_formats
from headrace.sources.kinds import Reading, Recognized, Refusal, read_dataset
from headrace.sources.source import Source
from headrace.transforms.origin import patched_text
from headrace.transforms.patches import find_patched


def recognize_dataset(dataset: Any) -> Reading:
    """Returns what native code can do for `dataset`. Reads its attributes and none of its samples."""
    known = read_dataset(dataset)
    if not isinstance(known, Recognized):
        return known
    patched = [patched_text(*each) for each in find_patched()]
    if patched:
        return Refusal(known.what, f"{'; '.join(patched)}: runs as written")
    if known.source.decoded:
        return known
    note, readable = _formats_note(known.source)
    if len(known.source) and not readable:
        return Refusal(known.what, f"{note}: decoded by Pillow in worker processes instead")
    note += "; its loader converts to L" if known.mode == "L" else ""
    note += "; its loader makes tensors of them" if known.decode is not None else ""
    note += ", turned as EXIF says" if known.upright else ""
    note += "; what native code can't read is read as timm does" if known.read is not None else ""
    source, remark = known.source.with_entries(known.root)
    return replace(known, source=source, note=f"{note}; {remark}" if remark else note)


def _formats_note(source: Source) -> tuple[str, int]:
    """Describes the formats of the files by their names, and how many of them native code decodes.

    Each file is decoded by what its bytes say; names say what to expect.
    """
    formats = native_formats()
    counts = source.formats(formats)
    known = sum(counts.values())
    if len(counts) > 1:
        parts = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        note = f"of {len(source):,} files {parts} by extension"
    else:
        note = f"{known:,} of {len(source):,} files are {' or '.join(counts or formats)} by extension"
    return (f"{note}; the others are decoded by Pillow" if 0 < known < len(source) else note), known


def dataset_identity(dataset: Any) -> str:
    """The dataset's class and length; its own `identity` if it has one, or a digest of its files' names and
    labels if it is one that the planner recognizes.

    The folder that all files are in may move: it is left out. Contents of files aren't looked at.
    """
    kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    own = getattr(dataset, "identity", None)
    if isinstance(own, str):
        return f"{kind} {own}"
    recognized = recognize_dataset(dataset)
    if isinstance(recognized, Recognized) and recognized.read is None:
        digest = recognized.source.digest()
        if digest is not None:
            return f"{kind} of {len(recognized.source)}, files {digest}"
    try:
        return f"{kind} of {len(dataset)}"
    except TypeError:
        return kind
