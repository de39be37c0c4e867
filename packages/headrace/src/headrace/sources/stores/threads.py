"""Threads of this process that wait for stores and for the cache's disk."""

from __future__ import annotations

import heapq
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import TypeVar

T = TypeVar("T")

# Requests that are under way at a time, of all stores together.
REQUESTS = 64
# Threads that claim records: they mostly wait for the disk, or for other processes.
CLAIMS = 2


class Threads:
    """Threads that do what they are given in its order, made as they are needed. They are daemons, and nobody
    waits for them when the process ends: obstore's synchronous functions may be left at any time."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self.name = name
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Starts again without threads and work, as in a forked child."""
        self._lock = threading.RLock()  # entered in C: Condition.__enter__ may leave it held after Ctrl-C
        self._changed = threading.Condition(self._lock)
        self._work: list[tuple[float, int, Callable[[], object]]] = []  # (time, number, work), a heap
        self._numbers = count()
        self._made = self._idle = 0

    def start(self, work: Callable[[], object], delay: float = 0.0) -> None:
        """Has `work` done, after `delay` seconds or later; it must not raise. Raises RuntimeError if the
        system allows not even one thread."""
        with self._lock:
            if len(self._work) >= self._idle and self._made < self._most:
                try:
                    threading.Thread(target=self._run, name=self.name, daemon=True).start()
                    self._made += 1
                except RuntimeError:
                    if not self._made:
                        raise
            heapq.heappush(self._work, (time.monotonic() + delay, next(self._numbers), work))
            self._changed.notify()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """The result of `work`, to be waited for by a thread that Ctrl-C may interrupt."""
        future: Future[T] = Future()

        def do() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self.start(do)
        return future

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
                while not self._work or self._work[0][0] > time.monotonic():
                    self._changed.wait(self._work[0][0] - time.monotonic() if self._work else None)
                self._idle -= 1
                _, _, work = heapq.heappop(self._work)
            work()
            del work  # what it holds on to isn't kept until the next


requests = Threads(REQUESTS, "headrace-store")
claims = Threads(CLAIMS, "headrace-cache")
