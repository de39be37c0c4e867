"""What a loader keeps from epoch to epoch: threads, memory, counts."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from functools import partial

import torch

from headrace.engine.iterator import LoaderIterator
from headrace.engine.meter import Failures, Meter
from headrace.engine.native import NativeThreads
from headrace.engine.slots import Slots
from headrace.records import LoaderStats, NativeStats

# Free slots kept where batches are finished one at a time.
KEPT = 2


class Runtime:
    """Of one loader; a copy of it makes its own.

    Attributes:
        meter: counts of what was done so far.
        failures: record of samples that were skipped or replaced.
        latest: weak reference to the iterator made last.
    """

    def __init__(self) -> None:
        self.meter = Meter()
        self.failures = Failures()
        self.latest: weakref.ref[LoaderIterator] | None = None
        # Those of the caller's own thread (0 of them) and others: a pool can't change from one to the other.
        self._threads: dict[bool, NativeThreads] = {}
        # They end with the loader, not when the next collection finds a cycle that they are part of.
        self._known: weakref.WeakSet[NativeThreads] = weakref.WeakSet()
        self.meter.native = partial(_stats_of, self._known)
        self._slots: Slots | None = None

    def threads_for(self, count: int) -> NativeThreads:
        """The native threads, made at the first use, `count` of them; 0: whoever asks does their work."""
        threads = self._threads.get(count == 0)
        if threads is None:
            threads = self._threads[count == 0] = NativeThreads(count)
            self._known.add(threads)
        return threads

    def slots_for(self, nbytes: int, *, pinned: bool, keep: int) -> Slots:
        """The memory for batches, replaced where its size changes."""
        if self._slots is None or self._slots.nbytes != nbytes:
            self._slots = Slots(nbytes, pinned=pinned, keep=keep)
        return self._slots

    def take(self, nbytes: int, *, pinned: bool) -> torch.Tensor:
        """Memory for one batch of any size up to the largest so far: uint8 [nbytes]."""
        if self._slots is None or self._slots.nbytes < nbytes:
            self._slots = Slots(nbytes, pinned=pinned, keep=KEPT)
        return self._slots.take(nbytes)

    def stats(self, budget: int, held: int) -> LoaderStats:
        """What was done so far. For any thread.

        Args:
            budget: bytes allowed.
            held: bytes of batches that aren't in slots of this runtime.
        """
        meter, slots, native = self.meter, self._slots, _stats_of(self._known)
        iterator = self.latest() if self.latest is not None else None
        decoded = dict(native.decoded_by) if native is not None else {}
        with meter.lock:
            stages, waits = meter.stages(), meter.waits
            pillow = sum(stage.samples for stage in stages if stage.name == "pillow")
            return LoaderStats(
                batches=meter.batches,
                samples=meter.samples,
                startup_seconds=meter.startup_seconds,
                stall_seconds=waits.total,
                waits=waits.cumulative(),
                epochs_begun=meter.epochs_begun,
                epochs=meter.epochs(),
                stages=stages,
                decoded_by={**decoded, "pillow": pillow},
                stale_entries=0 if native is None else native.stale_entries,
                failures=tuple(self.failures.records),
                memory_used=held + (0 if slots is None else slots.live * slots.nbytes),
                memory_allowed=budget,
                in_flight=0 if iterator is None else iterator.in_flight,
                decode_threads=0 if native is None else native.decode_threads,
                read_threads=0 if native is None else native.read_threads,
            )


def _stats_of(threads: Iterable[NativeThreads]) -> NativeStats | None:
    """Totals of native threads; None where none have been started in this process."""
    found = [stats for each in threads if (stats := each.stats()) is not None]
    return sum(found[1:], found[0]) if found else None
