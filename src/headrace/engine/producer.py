"""What makes batches, as the outermost iterator sees it: natively, on threads, in processes, or in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from headrace.records import BatchKeys


@dataclass(slots=True)
class Made:
    """A batch on the host.

    Attributes:
        data: as the user gets it, but for the copy to a device.
        samples: in it, as far as that can be told.
        taken: batches of the epoch that are done with once this one is received; one whose samples were all
            skipped counts, too.
        stream: (worker, state after this batch) of a stateful `IterableDataset`; None: it isn't one.
        keys: of the samples; None: not known.
        times: submitted_ns and made_ns of `headrace.records.BatchTimes`.
    """

    data: Any
    samples: int
    taken: int
    stream: tuple[int, Any] | None = None
    keys: BatchKeys | None = None
    times: tuple[int, int] = (0, 0)


class Producer(Protocol):
    """Makes the batches of one epoch, in order, several ahead where it can."""

    def __next__(self) -> Made:
        """Waits for the next batch. Raises StopIteration at the end, and whatever the user's code raised for
        this batch: the one after it may still be asked for."""

    def ready(self) -> int:
        """Batches, an error or the end among them, that could be had without waiting, as far as that is
        known; 0: whoever asks for the next waits."""

    @property
    def depth(self) -> int:
        """Batches that may be in flight now; 0: not known."""

    @property
    def in_flight(self) -> int:
        """Batches that are being made, or are made and wait to be taken."""

    def close(self) -> None:
        """Gives up what is in flight."""
