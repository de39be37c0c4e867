"""Python threads that do tasks in the order in which they were given, as many at a time as is said."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

# Beyond this the switching between threads costs more than more samples waiting at once bring.
MAX_THREADS = 256

Task = Callable[[], None]


class Crew:
    """Threads of one loader, made when they are first needed, kept until it is dropped.

    Args:
        limit: tasks at a time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()
        self._running = 0
        self._threads = ThreadPoolExecutor(
            MAX_THREADS, thread_name_prefix="headrace-sample", initializer=_as_batch_work
        )
        self._end = weakref.finalize(self, _end, self._threads, self._tasks, self._pid)

    def use(self, limit: int) -> None:
        """From now on `limit` tasks at a time, at most `MAX_THREADS`; what runs is let finish."""
        self.limit = min(limit, MAX_THREADS)
        self.add(())

    def add(self, tasks: Iterable[Task]) -> None:
        """Tasks to be done after those that were added before. They must not raise."""
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._end.detach()
            self._begin()
        with self._lock:
            self._tasks.extend(tasks)
            more = max(0, min(self.limit - self._running, len(self._tasks)))
            self._running += more
            # They wait for the lock: a thread starts in 0.1 ms beside threads that wait, and in 2 ms beside
            # threads that work.
            for _ in range(more):
                self._threads.submit(self._work)

    def clear(self) -> None:
        """Drops the tasks that nobody has begun."""
        self._tasks.clear()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._tasks or self._running > self.limit:
                    self._running -= 1
                    return
                task = self._tasks.popleft()
            task()


def _end(threads: ThreadPoolExecutor, tasks: deque[Task], pid: int) -> None:
    if os.getpid() == pid:
        tasks.clear()
        threads.shutdown(wait=False, cancel_futures=True)


def _as_batch_work() -> None:
    """Samples are made ahead: a thread that wakes for one shouldn't interrupt the training step."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):  # where a sandbox forbids it, it was only a hint
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))
