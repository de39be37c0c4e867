"""Which reads become one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Between a sample's image and the next one's lie the headers of tar and a label: never worth a request.
LEAST_GAP = 4096
# Of what a range brings, the part that may be dropped, as a fraction of 1 / WASTE.
WASTE = 16


@dataclass(frozen=True)
class Range:
    """Bytes `start` to `stop` - 1 of the object `name`; `parts` are the positions of the reads in them."""

    name: str
    start: int
    stop: int
    parts: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of it."""
        return self.stop - self.start


def coalesce(reads: Sequence[tuple[str, int, int]], gap: int, most: int) -> list[Range]:
    """`reads`, (name, start, size) each, as ranges: a read joins the one before it where few bytes lie
    between (`gap` at most, and few beside those that are wanted; LEAST_GAP always) and the whole stays within
    `most` bytes. In order of the first read that each one serves.
    """
    ranges: list[Range] = []
    by_place = sorted(range(len(reads)), key=lambda i: reads[i])
    for i in by_place:
        name, start, size = reads[i]
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and last.name == name
            and start - last.stop <= max(LEAST_GAP, min(gap, (last.nbytes + size) // WASTE))
            and max(last.stop, start + size) - last.start <= most
        ):
            ranges[-1] = Range(name, last.start, max(last.stop, start + size), (*last.parts, i))
        else:
            ranges.append(Range(name, start, start + size, (i,)))
    return sorted(ranges, key=lambda each: min(each.parts))
