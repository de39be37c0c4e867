"""Samples as members of a tar file, as WebDataset reads them: the same bytes for the same sample, always."""

from __future__ import annotations

import re
import tarfile

from headrace.errors import PackError
from headrace.packs.records import Sample

BLOCK = 512  # tar's unit: headers are one, data is padded to whole ones

# Two blocks of zeros end a tar file.
END = bytes(2 * BLOCK)

# What would be taken for the escapes below.
_ESCAPE_LIKE = re.compile("%(?=2E|25|5F)")


def member_stem(key: str) -> str:
    """The name of a sample's members up to the first dot.

    WebDataset splits a name at the first dot after the last slash, and takes names in double underscores for
    notes of its own: those characters of a key are written as ``%2E`` and ``%5F``, and a ``%`` that could be
    taken for such an escape as ``%25``.
    """
    folder, slash, base = _ESCAPE_LIKE.sub("%25", key).rpartition("/")
    return _without_underscores(folder) + slash + _without_underscores(base.replace(".", "%2E"))


def members(sample: Sample) -> tuple[bytes, int]:
    """All members of a sample, headers and padding included, and where in them the image's bytes begin."""
    stem = member_stem(sample.key)
    fields = sample.fields
    if sample.label >= 0 and not any(extension == "cls" for extension, _ in fields):
        fields = (("cls", b"%d" % sample.label), *fields)
    first = _header(f"{stem}.{sample.extension}" if sample.extension else stem, len(sample.image))
    pieces = [first, sample.image, _padding(sample.image)]
    for extension, data in fields:
        pieces += (_header(f"{stem}.{extension}", len(data)), data, _padding(data))
    return b"".join(pieces), len(first)


def parse_label(data: bytes) -> int:
    """The label that a .cls member holds. Raises PackError where it isn't a decimal number."""
    try:
        return int(data)
    except ValueError:
        raise PackError(f"its label is {data[:40]!r}, not a number") from None


def _header(name: str, size: int) -> bytes:
    # No owner and no time: the same samples give the same bytes, whoever packs them and whenever.
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(data: bytes) -> bytes:
    return bytes(-len(data) % BLOCK)


def _without_underscores(name: str) -> str:
    return "%5F" + name[1:] if name.startswith("__") else name
