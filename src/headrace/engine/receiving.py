"""Waiting for what worker processes send, without ever waiting for one that is dead."""

from __future__ import annotations

import io
import os
import queue
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

# A worker's end shows at once, but where a process that it has forked holds its files: then by asking.
WATCH_SECONDS = 1.0


class Watch:
    """The ends of worker processes, and the pipe that their batches come through.

    Args:
        workers: the processes.
        reader: the end of the pipe that is read from.
    """

    def __init__(self, workers: Sequence[Any], reader: Any) -> None:
        self._workers = workers
        self._reader = reader.fileno()
        self._ends, self._all = select.poll(), select.poll()
        for worker in workers:
            self._ends.register(worker.sentinel, select.POLLIN)
            self._all.register(worker.sentinel, select.POLLIN)
        self._all.register(self._reader, select.POLLIN)

    def wait(self, seconds: float) -> None:
        """Until something comes, or a worker ends, but no longer than that."""
        self._all.poll(1000 * seconds)

    def ended(self, *, ask: bool) -> bool:
        """Whether a worker has ended. `ask`: the system, too, which takes a call for each of them."""
        return bool(self._ends.poll(0)) or (ask and not self._alive())

    def receive(self, size: int, read: Callable[[int, int], bytes] = os.read) -> io.BytesIO:
        """In place of `Connection._recv`, which waits without end for the rest of a message whose sender was
        killed in the middle of it: the others can't write, as it has their lock. For any thread.

        Raises:
            queue.Empty: the message will never be complete.
        """
        received = io.BytesIO()
        while received.tell() < size:
            came = dict(self._all.poll(1000 * WATCH_SECONDS))
            if self._reader in came:
                chunk = read(self._reader, size - received.tell())
                if not chunk:
                    raise queue.Empty("all workers have ended")
                received.write(chunk)
            elif came or not self._alive():
                raise queue.Empty("a worker ended while it sent a batch")
        return received

    def _alive(self) -> bool:
        return all(worker.is_alive() for worker in self._workers)


def close_once(connection: Any) -> None:
    """Makes `connection.close` do nothing but for the first that calls it. Two threads that call it at a time
    would close the descriptor twice, which may be another file's by then: its number is forgotten only
    afterwards."""
    first = [connection.close]

    def close() -> None:
        with suppress(IndexError):
            first.pop()()  # popped by one thread only

    connection.close = close


def has_room(writer: Any) -> bool:
    """Whether a few bytes can be written to a pipe without waiting for who reads it."""
    poll = select.poll()
    poll.register(writer.fileno(), select.POLLOUT)
    return bool(poll.poll(0))
