"""Processor time of this process and of its children, since a moment."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import NamedTuple

import psutil


class Times(NamedTuple):
    """Seconds.

    Attributes:
        wall: by `time.perf_counter()`.
        own: processor time of this process, all its threads.
        children: of its children and theirs, those that ended and were waited for included.
    """

    wall: float
    own: float
    children: float

    def since(self, earlier: Times) -> Times:
        """The differences."""
        return Times(*(now - then for now, then in zip(self, earlier, strict=True)))


def times() -> Times:
    """Now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    children = ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            used = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        children += used.user + used.system
    return Times(time.perf_counter(), time.process_time(), children)


def wait_until_quiet(filled: Callable[[], bool], *, at_most: float = 10.0) -> bool:
    """Waits until this process and its children do nothing, as workers do once enough batches are ready.

    Args:
        filled: whether there is nothing left that they could do, where that can be asked.
        at_most: seconds to wait.

    Returns:
        Whether they came to rest.
    """
    end, calm, before = time.perf_counter() + at_most, 0, times()
    while time.perf_counter() < end:
        time.sleep(0.05)
        now = times()
        spent = now.since(before)
        busy = (spent.own + spent.children) / spent.wall
        calm, before = (calm + 1 if busy < 0.1 and filled() else 0), now
        if calm == 3:
            return True
    return False
