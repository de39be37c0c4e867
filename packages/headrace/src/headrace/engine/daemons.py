"""Stops or waits for daemon threads that are in an epoch when the interpreter ends."""

from __future__ import annotations

import os
import threading
import time
from threading import get_ident

# A thread may be in code of the user's that waits for long: such a thread is left behind, as in torch.
PATIENCE_SECONDS = 1.0


class DaemonThreads:
    """A context in which a daemon thread works for a loader.

    Before Python 3.14 the interpreter's end unwinds the stack of a daemon thread when it next asks for the
    GIL. In a function of torch's that aborts the process, so the end waits for threads in this context, and
    from then on they stop for good where they enter or leave it.
    """

    def __init__(self) -> None:
        self._inside: list[threading.Thread] = []
        self._ending = False

    def __enter__(self) -> None:
        if get_ident() == _main:  # no daemon, and the thread that most loaders work for
            return
        thread = threading.current_thread()
        if thread.daemon:
            self._inside.append(thread)
            if self._ending:
                self._stop(thread)

    def __exit__(self, kind: object, *_: object) -> None:
        if get_ident() == _main:
            return
        thread = threading.current_thread()
        if thread.daemon:
            # Executors end before `end` is called. What comes of it isn't the thread's to raise.
            if self._ending or (kind is not None and not threading.main_thread().is_alive()):
                self._stop(thread)
            self._inside.remove(thread)

    def end(self) -> None:
        """Waits for the threads in this context, and stops those that come to it from now on."""
        self._ending = True
        deadline = time.monotonic() + PATIENCE_SECONDS
        # A forked process has no other thread of those that its parent noted.
        while any(thread in self._inside for thread in threading.enumerate()) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _stop(self, thread: threading.Thread) -> None:
        while thread in self._inside:
            self._inside.remove(thread)
        threading.Event().wait()


daemon_threads = DaemonThreads()
_main = threading.main_thread().ident


def _renew_main() -> None:
    global _main
    _main = threading.main_thread().ident  # of a forked child, the thread that forked it


os.register_at_fork(after_in_child=_renew_main)
