"""The orientation of a JPEG's image: which way up it is, as EXIF says."""

from __future__ import annotations

from PIL.ExifTags import Base

SHORT, NO_TAG = 3, 0xFFFF  # the type of an orientation, and the tag at which torchvision stops reading
TYPES_NBYTES = dict(enumerate((1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8), 1))  # of values in EXIF
APP1, START_OF_SCAN = 0xE1, 0xDA  # markers of a JPEG
EXIF = b"Exif\0\0"
MARKS = (b"\0*", b"*\0")  # of a TIFF file, after its byte order
# What turns the pixels of a file upright: mirrored (x, y), or degrees counter-clockwise.
UPRIGHT: dict[int, tuple[bool, bool] | float] = {
    1: (False, False),
    2: (True, False),
    3: (True, True),
    4: (False, True),
    6: 270.0,
    8: 90.0,
}


def segments_of(data: bytes) -> list[tuple[int, bytes]]:
    """The markers of a JPEG with what follows them, the last of which is its scan's if nothing is unusual."""
    segments, at = [(0, b"")], 2
    while data[at : at + 1] == b"\xff" and segments[-1][0] != START_OF_SCAN:
        if data[at + 1] == 0xFF:  # which may fill the space before a marker
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segments.append((data[at + 1], data[at + 4 : end]))
        at = end
    return segments


def orientation_in(exif: bytes) -> int:
    """The orientation in a segment of EXIF, or 0 if anything in its first directory is unusual."""
    tiff = exif[6:]
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(tiff[:4])
    if order is None or not exif.startswith(EXIF):
        return 0

    def read(at: int, nbytes: int) -> int:
        return int.from_bytes(tiff[at : at + nbytes], order)  # type: ignore[arg-type]

    first = read(4, 4)
    begin, end = first + 2, first + 2 + 12 * read(first, 2)
    if first < 8 or begin == end or end + 4 > len(tiff):
        return 0
    found = []
    for at in range(begin, end, 12):
        tag, kind, count = read(at, 2), read(at + 2, 2), read(at + 4, 4)
        nbytes = TYPES_NBYTES.get(kind, 0) * count
        if tag == NO_TAG or nbytes == 0 or (nbytes > 4 and read(at + 8, 4) + nbytes > len(tiff)):
            return 0
        if tag == Base.Orientation:
            found.append(read(at + 8, 2) if (kind, count) == (SHORT, 1) else 0)
    return 0 if len(found) > 1 else found[0] if found else 1


def orientation_by_first(segments: list[tuple[int, bytes]]) -> int:
    """The orientation as torchvision and torchcodec read it, which look at the first segment that EXIF may be
    in; or 0 if that isn't certain."""
    first = next((content for marker, content in segments if marker == APP1), b"")
    if first.startswith(EXIF):
        return orientation_in(first)
    return 0 if first[8:10] in MARKS else 1
