"""Python threads that run tasks in the order in which they were added, a limited number at a time."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress

from headrace.engine.daemons import daemon_threads

# Beyond this the switching between threads costs more than more samples waiting at once bring.
MAX_THREADS = 256
# At the interpreter's end tasks that run are waited for: a thread must not be in the middle of one when
# Python is taken down. One that takes longer is left behind.
PATIENCE_SECONDS = 5.0

Task = Callable[[], None]


class ThreadPool:
    """Threads of one loader, made when they are first needed, kept until it is dropped."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._begin()

    def _begin(self) -> None:
        self._state = _State(self.limit)
        self._end = weakref.finalize(self, _State.end, self._state)
        self._end.atexit = False  # `_end_all` does it, and waits
        _all.add(self._state)
        self._pid = os.getpid()  # last: if Ctrl-C comes before in a forked child, the next call does it again

    def use(self, limit: int) -> None:
        """From now on `limit` tasks at a time, at most `MAX_THREADS`; what runs is let finish."""
        self.limit = min(limit, MAX_THREADS)
        self.add(())

    def add(self, tasks: Iterable[Task]) -> None:
        """Tasks to be done after those that were added before. They must not raise."""
        if self._pid != os.getpid():  # a forked child has none of its parent's threads
            self._end.detach()
            self._begin()
        self._state.add(self.limit, tasks)


class _State:
    """The state that a pool and its threads share: it doesn't keep the pool alive."""

    def __init__(self, limit: int) -> None:
        self.pid = os.getpid()
        self._lock = threading.RLock()  # entered in C: Condition.__enter__ may leave it held after Ctrl-C
        self._changed = threading.Condition(self._lock)
        self._tasks: deque[Task] = deque()
        self._limit = limit
        self._threads = 0
        self._running = 0
        self._ended = False

    def add(self, limit: int, tasks: Iterable[Task]) -> None:
        """See `ThreadPool.add`."""
        with self._lock:
            self._limit = limit
            self._tasks.extend(tasks)
            wanted = min(limit, self._running + len(self._tasks))
            # They wait for the lock: a thread starts in 0.1 ms while others wait, and in 2 ms while they
            # work.
            while self._threads < wanted:
                name = f"headrace-sample-{self._threads + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1  # last: after Ctrl-C there may be a thread too many, which only waits
            self._changed.notify_all()

    def end(self) -> None:
        """Drops tasks that nobody has started; threads end once they are done with their task."""
        if os.getpid() == self.pid:
            with self._lock:
                self._ended = True
                self._tasks.clear()
                self._changed.notify_all()

    def busy(self) -> bool:
        """Returns whether a task is being done."""
        return os.getpid() == self.pid and self._running > 0

    def _work(self) -> None:
        _as_batch_work()
        with self._lock:
            while True:
                while not self._ended and (not self._tasks or self._running >= self._limit):
                    self._changed.wait()
                if self._ended:
                    return
                task = self._tasks.popleft()
                self._running += 1
                self._lock.release()
                try:
                    task()
                finally:
                    del task
                    self._lock.acquire()
                    self._running -= 1


_all: weakref.WeakSet[_State] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    daemon_threads.end()  # while there are pools to make what these threads wait for
    states = list(_all)
    for state in states:
        state.end()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(state.busy() for state in states) and time.monotonic() < deadline:
        time.sleep(0.001)


def _as_batch_work() -> None:
    """Samples are made ahead: a thread that wakes for one shouldn't interrupt the training step."""
    with suppress(OSError):  # if a sandbox forbids it, it was only a hint
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))
