"""Many numbers in little memory: a histogram of seconds."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate

# Parts of a power of two: a value taken from the middle of its part is at most 3 % off.
PARTS = 16
# Seconds from 2**-20 (a microsecond) to 2**12 (an hour).
BOUNDS = [math.ldexp(1 + part / PARTS, exponent) for exponent in range(-20, 12) for part in range(PARTS)]


class Histogram:
    """A histogram of how long steps waited: `count`, `total` and `largest` of the values are exact."""

    count = 0
    total = 0.0
    largest = 0.0

    def __init__(self) -> None:
        # Of values below BOUNDS[0], from each bound to the next, and beyond the last, by number.
        self._counts: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """One more value; one below 0 counts as 0."""
        seconds = max(0.0, seconds)
        self.count += 1
        self.total += seconds
        if seconds > self.largest:
            self.largest = seconds
        place, counts = bisect_right(BOUNDS, seconds), self._counts
        counts[place] = counts.get(place, 0) + 1

    def merge(self, other: Histogram) -> None:
        """All values of another histogram, too."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        for place, count in other._counts.items():
            self._counts[place] = self._counts.get(place, 0) + count

    def quantile(self, share: float) -> float:
        """The value that `share` (0 to 1) of all values don't exceed, within 4 % and half a microsecond; 0
        if there are none."""
        left = max(1, math.ceil(share * self.count))
        for place, count in sorted(self._counts.items()):
            left -= count
            if left <= 0:
                # Place i is from BOUNDS[i - 1] to BOUNDS[i]; the first and the last have one of them.
                lower = BOUNDS[max(place - 1, 0)]
                upper = BOUNDS[min(place, len(BOUNDS) - 1)]
                return min(self.largest, (lower + upper) / 2)
        return 0.0

    def cumulative(self) -> tuple[tuple[float, int], ...]:
        """(seconds, values below): for each power of two, and without bound."""
        below = list(accumulate(self._counts.get(place, 0) for place in range(len(BOUNDS) + 1)))
        return (*zip(BOUNDS[::PARTS], below[::PARTS], strict=False), (math.inf, self.count))
