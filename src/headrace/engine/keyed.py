"""The keys of batches that a producer of any kind has made, for what is drawn from them later."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.engine.producer import Made, Producer
from headrace.engine.seeding import batch_keys
from headrace.order.batches import IndexBatch


class NotedBatches(Iterator[IndexBatch]):
    """Hands `batches` through, and remembers them until they are asked for by number, the first being 1."""

    def __init__(self, batches: Iterator[IndexBatch]) -> None:
        self._batches = batches
        self._handed = 0
        self._noted: dict[int, IndexBatch] = {}

    def __next__(self) -> IndexBatch:
        batch = next(self._batches)
        self._handed += 1
        self._noted[self._handed] = batch
        return batch

    def take(self, number: int) -> IndexBatch:
        """Batch `number`; it and those before it are then forgotten."""
        batch = self._noted[number]
        for passed in [n for n in self._noted if n <= number]:
            del self._noted[passed]
        return batch


class Keyed:
    """`make`'s producer, its batches with their keys: a `Producer`.

    Args:
        make: makes a producer that takes its batches in order from what it is given.
        batches: of the epoch.
        key: (seed, epoch).
        samples: of the dataset; 0: not known.
    """

    def __init__(
        self,
        make: Callable[[Iterator[IndexBatch]], Producer],
        batches: Iterator[IndexBatch],
        key: tuple[int, int],
        samples: int,
    ) -> None:
        self._noted = NotedBatches(batches)
        self._producer = make(self._noted)
        self._key = key
        self._samples = samples
        self.ready = self._producer.ready
        self.close = self._producer.close

    def __next__(self) -> Made:
        made = next(self._producer)
        made.keys = batch_keys(self._key, self._noted.take(made.taken), self._samples)
        return made

    @property
    def depth(self) -> int:
        """Batches that may be in flight; 0: not known."""
        return self._producer.depth

    @property
    def in_flight(self) -> int:
        """Batches that are being made or wait to be taken."""
        return self._producer.in_flight
