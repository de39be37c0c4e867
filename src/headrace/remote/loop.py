"""One thread of this process that waits for stores, and runs their coroutines."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_current: Loop | None = None

# How long the end of the process waits for what is under way to notice.
END_SECONDS = 5.0


class Loop:
    """An event loop in a daemon thread, of the process that made it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="headrace-remote", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begins `work`; for any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def inside(self) -> bool:
        """Whether this is the loop's own thread."""
        return threading.get_ident() == self._thread.ident

    def end(self) -> None:
        """Cancels what is under way and ends the thread."""
        if self.pid != os.getpid() or self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(END_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(self._cancel())
        self.loop.close()

    async def _cancel(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def loop() -> Loop:
    """That of this process, made at the first use; a forked child makes its own."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = Loop()
            atexit.register(_current.end)
        return _current


def _forget_lock() -> None:
    # Another thread of the parent may have held it, and doesn't exist here.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
