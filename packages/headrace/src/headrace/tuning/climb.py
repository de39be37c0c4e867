"""Hill climbing over a few knobs, as a generator: it says what to try, and receives what came of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

Settings = Mapping[str, int]
# A step that waits less than this share of its time has nothing to gain from a faster loader.
STALL_THAT_MATTERS = 0.02
SMALL = 8
# A setting must be better by this to be kept: windows of the same setting differ by a few per cent.
GAIN_THAT_COUNTS = 1.05


@dataclass(frozen=True)
class Knob:
    """Something that can be set.

    Attributes:
        name: such as "decode_threads" or "depth".
        values: that it may have, ascending.
    """

    name: str
    values: tuple[int, ...]

    def next_to(self, value: int, direction: int) -> int | None:
        """The value after (direction 1) or before (-1) `value`; None: there is none."""
        beyond = [v for v in self.values if (v > value if direction > 0 else v < value)]
        return None if not beyond else min(beyond) if direction > 0 else max(beyond)


@dataclass(frozen=True)
class Window:
    """What was measured under one setting.

    Attributes:
        rate: batches that the training loop went through per second, its own work included.
        stall: share of the time that it waited for them, 0 to 1.
        seconds: length of the window.
    """

    rate: float
    stall: float
    seconds: float = 0.0


def climb(start: Settings, knobs: Sequence[Knob]) -> Generator[Settings, Window, Settings]:
    """Yields settings to be used, and wants a `Window` measured under each; returns the best.

    Nothing is tried while the training loop doesn't wait. What is found is measured once more, as is the
    start, so that a lucky window can't make things worse.
    """
    best, measured = start, (yield start)
    for knob in knobs:
        for direction in (1, -1):
            moved = False
            while measured.stall >= STALL_THAT_MATTERS:
                value = knob.next_to(best[knob.name], direction)
                if value is None:
                    break
                candidate = {**best, knob.name: value}
                window = yield candidate
                if window.rate < GAIN_THAT_COUNTS * measured.rate:
                    break
                best, measured, moved = candidate, window, True
            if moved:
                break
    if best == start:
        return start
    again = yield best
    at_start = yield start
    return best if again.rate >= at_start.rate else start


def ladder(value: int, most: int, *, least: int = 1) -> tuple[int, ...]:
    """Values to try around `value`: one and a half times it, twice it, and so on up to `most`; halves of it
    down to `least`; the numbers next to it where it is small, as one more of 30 would make no difference."""
    values = {value}
    if value < SMALL:
        values |= {value + 1, value - 1}
    up = down = value
    while up < most:
        values |= {up + (up + 1) // 2, 2 * up}
        up *= 2
    while down > least:
        down //= 2
        values.add(down)
    return tuple(sorted({min(most, max(least, v)) for v in values}))
