"""What is kept of single steps while a trace is recorded."""

from __future__ import annotations

import threading
from collections import deque

from headrace.records import BatchTimes, TraceEvent

# The latest are kept: about 50 MB, and a file of up to 130 MB.
MAX_EVENTS = 100_000


class Recorder:
    """A ring of events. Any thread may add to it.

    Attributes:
        events: the latest, in the order in which they ended.
        threads: names, by the threads' numbers as the system knows them.
    """

    def __init__(self) -> None:
        self.events: deque[TraceEvent] = deque(maxlen=MAX_EVENTS)
        self.threads: dict[int, str] = {}

    def add(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        batch: BatchTimes | None = None,
        queue: tuple[int, int] = (0, 0),
    ) -> None:
        """See `TraceEvent`; the thread is the one that calls."""
        thread = threading.get_native_id()
        if thread not in self.threads:
            self.threads[thread] = threading.current_thread().name
        self.events.append(TraceEvent(name, thread, start_ns, end_ns, batch, queue))
