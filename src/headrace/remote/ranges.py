"""Which reads become one request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
    """`reads`, (name, start, size) each, as few ranges: one more read joins where no more than `gap` bytes lie
    between and the whole stays within `most` bytes. In order of the first read that each one serves.
    """
    ranges: list[Range] = []
    by_place = sorted(range(len(reads)), key=lambda i: reads[i])
    for i in by_place:
        name, start, size = reads[i]
        last = ranges[-1] if ranges else None
        if (
            last is not None
            and last.name == name
            and start - last.stop <= gap
            and max(last.stop, start + size) - last.start <= most
        ):
            ranges[-1] = Range(name, last.start, max(last.stop, start + size), (*last.parts, i))
        else:
            ranges.append(Range(name, start, start + size, (i,)))
    return sorted(ranges, key=lambda each: min(each.parts))
