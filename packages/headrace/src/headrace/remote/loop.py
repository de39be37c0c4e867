"""One thread of this process that waits for stores, and runs their coroutines."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_current: Loop | None = None

# How long the end of the process waits for what is under way to notice.
END_SECONDS = 5.0
# What Linux calls obstore's threads, and how long they must have done nothing at the end of the process.
STORE_THREAD = "tokio-rt-worker"
QUIET_SECONDS = 0.02


class Loop:
    """An event loop in a daemon thread, of the process that made it.

    Attributes:
        ended: whether nothing more may be started, as the process ends.
        last: what is awaited at the end, after everything else was cancelled; None: nothing.
    """

    def __init__(self) -> None:
        self.last: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.ended = False
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-remote", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Starts `work`; for any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def end(self) -> None:
        """Cancels what is under way and ends the thread."""
        if self.pid != os.getpid() or self.ended:
            return
        self.ended = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_SECONDS)
        await_store_threads()  # some may still hand results to the loop
        if not self._thread.is_alive():
            self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self._cancel())

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.last is not None:
            await self.last()


def loop() -> Loop:
    """That of this process, made at the first use; a forked child makes its own."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = Loop()
            atexit.register(_current.end)
        return _current


def await_store_threads() -> None:
    """Waits until obstore's threads sleep, at the end of the process. One that still hands over a result
    requests the GIL while the interpreter is ending; Python then ends the thread, which aborts the process
    (SIGABRT), as the thread runs Rust code.
    """
    deadline = time.monotonic() + END_SECONDS
    before: dict[str, tuple[str, str]] = {}
    while time.monotonic() < deadline:
        now = _store_threads()
        if now == before and all(state == "S" for state, _ in now.values()):
            return
        before = now
        # A thread that waits for the GIL wakes up after each switch interval, and so isn't quiet.
        time.sleep(max(QUIET_SECONDS, 4 * sys.getswitchinterval()))


def _store_threads() -> dict[str, tuple[str, str]]:
    """(state, how often it has slept) of each of obstore's threads."""
    found = {}
    for place in Path("/proc/self/task").iterdir():
        try:
            lines = (place / "status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if fields["Name"] == STORE_THREAD:
            found[place.name] = fields["State"][0], fields["voluntary_ctxt_switches"]
    return found


def _forget_lock() -> None:
    # Another thread of the parent may have held it, and doesn't exist here.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
