"""The iterator that iter(loader) returns: batches for the user, in order, on the device asked for."""

from __future__ import annotations

import sys
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace._torch_compat import LoaderIteratorBase
from headrace.device.prefetcher import DevicePrefetcher
from headrace.engine.daemons import daemon_threads
from headrace.engine.meter import EpochMeter
from headrace.engine.stream import BatchStream, HostBatch
from headrace.order.progress import Epoch

SHUT_DOWN = "this epoch's worker processes were shut down; start another epoch with iter(loader)."

# Begins as torch's does, so that filters of warnings know it.
TOO_LONG = (
    "Length of IterableDataset was reported to be {reported} samples, but {given} samples have been fetched."
    " For multiprocessing data-loading, this is so if each worker gives all samples rather than a share of"
    " its own: torch.utils.data.get_worker_info() tells which worker it is. Otherwise correct its __len__()."
)


class LoaderIterator(LoaderIteratorBase):  # type: ignore[misc]
    """One epoch for the user, whose position moves with every batch that the user receives. Has what clean-up
    code asks of torch's iterators: their class, `_workers` and `_shutdown_workers()`. `reported_length` is
    the number of samples that len() reported of an `IterableDataset`, if it was asked for.
    """

    _waits_since = 0.0
    _copied = (0, 0.0)
    _received_samples = 0

    def __init__(
        self,
        stream: BatchStream,
        epoch: Epoch,
        meter: EpochMeter,
        transfer: DevicePrefetcher,
        reported_length: int | None,
    ) -> None:
        self._stream = stream
        self._epoch = epoch
        self._position = epoch.position
        self._reported_length = reported_length
        self._meter = meter
        self._transfer = transfer
        self._ahead = transfer.ahead
        self._sent: deque[tuple[HostBatch, int, Any] | BaseException] = deque()

    def __iter__(self) -> LoaderIterator:
        return self

    def __len__(self) -> int:
        length = self.length
        if length is None:
            raise TypeError("this loader has no len(): neither has its sampler, or its IterableDataset")
        return length

    def __next__(self) -> Any:
        start = self._waits_since = time.perf_counter()
        with daemon_threads:
            try:
                stream, transfer = self._stream, self._transfer
                ready = len(self._sent) + stream.ready()
                if transfer.idle and not self._sent:
                    made = self._made()
                    taken_ns, batch = time.perf_counter_ns(), made.data
                else:
                    made, taken_ns, batch = self._next()
                if self._reported_length is not None:
                    self._compare_length(made)
                if self._ahead:
                    self._send_ahead()
                depth = stream.depth
                self._meter.received(
                    made.samples,
                    start,
                    len(self._sent) + stream.in_flight,
                    ready,
                    depth + self._ahead if depth else 0,
                    made.taken,
                    (*made.times, taken_ns),
                )
                if transfer.copied_bytes:
                    self._count_copies(made.samples)
                # Last: after Ctrl-C before this, the loader's state is that before the batch.
                self._position.receive(made.taken, made.stream)
                return batch
            finally:
                self._waits_since = 0.0

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # At the interpreter's end threads and processes were ended before, and modules may be empty by now.
        if not _is_finalizing():
            self.close()

    def close(self) -> None:
        """Gives up what is in flight."""
        stream = getattr(self, "_stream", None)
        if stream is not None:
            stream.close()
            self._transfer.close()
            self._meter.end(finished=False)

    @property
    def _workers(self) -> list[Any]:
        return self._stream.processes

    def _shutdown_workers(self) -> None:
        self._stream.shut_down()
        self.close()
        if not self._position.finished:  # the end of what is left isn't that of the epoch
            self._sent.clear()
            self._sent.append(RuntimeError(SHUT_DOWN))

    @property
    def length(self) -> int | None:
        """Number of batches of the whole epoch, or None if it isn't known: len() then raises TypeError."""
        return self._epoch.batches.length()

    @property
    def skipped(self) -> int:
        """Number of batches of the epoch before the state that it resumes from."""
        return self._epoch.start.position // self._epoch.batches.positions_per_batch

    @property
    def in_flight(self) -> int:
        """Batches that are being made, or wait to be received."""
        return len(self._sent) + self._stream.in_flight

    @property
    def waiting_seconds(self) -> float:
        """For how long the user has been in next(); 0: isn't now. For any thread."""
        since = self._waits_since
        return time.perf_counter() - since if since else 0.0

    def _compare_length(self, made: HostBatch) -> None:
        reported = self._reported_length or 0
        self._received_samples += made.samples
        if made.taken > reported:
            given = max(made.taken, self._received_samples)
            warnings.warn(TOO_LONG.format(reported=reported, given=given), stacklevel=3)

    def _count_copies(self, samples: int) -> None:
        nbytes, seconds = self._transfer.copied_bytes, self._transfer.copy_seconds
        if nbytes:
            before, self._copied = self._copied, (nbytes, seconds)
            self._meter.add_copies(samples, nbytes - before[0], seconds - before[1])

    def _next(self) -> tuple[HostBatch, int, Any]:
        first = self._sent.popleft() if self._sent else self._send(self._made())
        if isinstance(first, BaseException):
            raise first
        made, taken_ns, sent = first
        return made, taken_ns, self._transfer.receive(sent)

    def _made(self) -> HostBatch:
        """The next batch of the stream, at whose end the epoch ends."""
        try:
            return next(self._stream)
        except StopIteration:
            self._position.finish(self._stream.ends)
            self._count_copies(0)
            self._meter.end(finished=True)
            raise

    def _send(self, made: HostBatch) -> tuple[HostBatch, int, Any]:
        taken_ns, keyed = time.perf_counter_ns(), self._stream.keyed
        keys = made.keys if keyed is None else keyed.keys_of(made.taken)
        return made, taken_ns, self._transfer.send(made.data, keys)

    def _send_ahead(self) -> None:
        while len(self._sent) < self._ahead and self._stream.ready():
            try:
                made = next(self._stream, None)
                if made is None:
                    return
                self._sent.append(self._send(made))
            except Exception as error:  # of a batch that is asked for later
                self._sent.append(error)
                return
