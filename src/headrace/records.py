"""Plain data that crosses layers. Nothing here computes anything or imports anything of ours."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# The numbers that were drawn for one step of one sample; what they mean is said by `draws` of the step's
# class in headrace.transforms: a crop's top and left in pixels, whether the image is flipped (1 or 0), …
Draw = tuple[float, ...]

PRINTED_EPOCHS = 5


class SampleKey(NamedTuple):
    """All that the random parameters of a sample depend on.

    Attributes:
        seed, epoch: of the loader; see `headrace.DataLoader`.
        sample: its index in the dataset.
        occurrence: tells apart the times that an index comes in an epoch; 0 where it comes once.
    """

    seed: int
    epoch: int
    sample: int
    occurrence: int = 0


@dataclass(frozen=True, eq=False)
class BatchKeys:
    """The `SampleKey` of each sample of a batch.

    Attributes:
        seed, epoch: of all of them.
        samples: int64 [n]; indices in the dataset, 0 or more.
        occurrences: int64 [n].
    """

    seed: int
    epoch: int
    samples: npt.NDArray[np.int64]
    occurrences: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, position: int) -> SampleKey:
        """The key of the sample at `position` of the batch."""
        return SampleKey(self.seed, self.epoch, int(self.samples[position]), int(self.occurrences[position]))


@dataclass(frozen=True)
class SampleFailure:
    """A sample that was skipped or replaced, and why. `index` is the dataset's."""

    index: int
    path: str | None
    cause: str
    action: str  # "skipped" or "replaced"

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class NativeStats:
    """Totals of a native pool since it was made.

    Attributes:
        samples: made natively.
        failed: left to Pillow, or to the user's error policy.
        bytes_read: from files.
        pixels_decoded: of the rectangles that were asked for.
        stale_entries: samples whose entry points were ignored, as their file has changed since.
        nanoseconds: thread time per stage, by the wall clock.
        decoded_by: samples per JPEG decoder.
        decode_threads, read_threads: that run now; no reader runs while reads don't block.
    """

    samples: int
    failed: int
    bytes_read: int
    pixels_decoded: int
    stale_entries: int
    nanoseconds: dict[str, int]
    decoded_by: dict[str, int]
    decode_threads: int
    read_threads: int


@dataclass(frozen=True)
class StageStats:
    """What one stage cost, since the loader was made or in one epoch.

    Attributes:
        name: read, parse, decode, resize, store (native threads); pillow, python (the user's own
            dataset; both on Python threads); collate; transfer (copies to the device).
        samples: that went through it.
        seconds: thread time by the wall clock, added up over the threads.
        bytes: that it read, wrote or copied; 0 where that says nothing.
        threads: that work on it now, though not on it alone: native threads share all native stages.
    """

    name: str
    samples: int
    seconds: float
    bytes: int = 0
    threads: int = 1

    @property
    def samples_per_second(self) -> float:
        """What one thread would do with this stage alone; 0 where nothing was measured."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def supply(self) -> float:
        """Samples per second that all its threads would do with this stage alone; 0 where nothing was
        measured."""
        return self.samples_per_second * self.threads

    @property
    def bytes_per_second(self) -> float:
        """Of one thread; 0 where nothing was measured."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class QueueFill:
    """How many batches were on their way, over the steps of one epoch.

    Attributes:
        depth: batches that may be in flight, at the latest step; 0: not known, as with torch's own workers.
        steps_per_point: a power of two; the points are means of so many steps each. Those of the last steps
            that fill no point are left out.
        ready: batches that were done when the step asked for its own, itself included.
        in_flight: batches that were being made or done once the step had its own.
    """

    depth: int
    steps_per_point: int
    ready: tuple[float, ...]
    in_flight: tuple[float, ...]


@dataclass(frozen=True)
class EpochStats:
    """What one epoch did. A step's wait is the time that it spent in next(); that for the first batch counts
    as start-up, not as stall. See docs/stats.md.

    Attributes:
        number: of the epoch, from 0.
        state: "running", "finished", or "stopped": left before its end, or ended by an error.
        batches, samples: that the caller received.
        seconds: since it began: until its end, or until the batch received last while it runs.
        startup_seconds: from its beginning until the first batch was received; part of `seconds`.
        stall_seconds: what all steps but the first waited.
        stall_median_seconds, stall_p95_seconds: of one step, within 4 %; `stall_max_seconds`: exact.
        stages: what its stages cost; in order.
        queue: how full the queue was.
    """

    number: int
    state: str
    batches: int
    samples: int
    seconds: float
    startup_seconds: float
    stall_seconds: float
    stall_median_seconds: float
    stall_p95_seconds: float
    stall_max_seconds: float
    stages: tuple[StageStats, ...]
    queue: QueueFill

    @property
    def stall_share(self) -> float:
        """0 to 1: of the time after the start-up, what the steps waited."""
        after = self.seconds - self.startup_seconds
        return min(1.0, self.stall_seconds / after) if after > 0 else 0.0

    @property
    def batches_per_second(self) -> float:
        """Start-up included; 0 before the first batch."""
        return self.batches / self.seconds if self.batches else 0.0

    @property
    def samples_per_second(self) -> float:
        """Start-up included; 0 before the first batch."""
        return self.samples / self.seconds if self.batches else 0.0


@dataclass(frozen=True)
class RemoteStats:
    """What this process did for a dataset of URLs since it was first used. See docs/remote.md.

    Attributes:
        bytes_fetched: by requests that succeeded; what lies between records that were read together counts.
        requests: sent, further tries included.
        retries: of these, the further tries.
        concurrency: requests that may be under way now; 0: none was sent so far.
        latency_seconds: from a request to its first byte, a running mean.
        cache_hits, cache_misses: records that were asked for and that the cache held, or didn't.
        cache_evictions: records that were removed to make room.
        cache_bytes, cache_capacity: that the cache holds, for all processes of this node; and may hold.
    """

    bytes_fetched: int
    requests: int
    retries: int
    concurrency: int
    latency_seconds: float
    cache_hits: int
    cache_misses: int
    cache_evictions: int
    cache_bytes: int
    cache_capacity: int

    def __str__(self) -> str:
        """Two lines."""
        return (
            f"remote: {self.bytes_fetched / 1e6:,.1f} MB by {self.requests:,} requests, {self.retries:,} of"
            f" them tried again; {self.concurrency} at a time, {1e3 * self.latency_seconds:,.1f} ms to the"
            f" first byte\ncache: {self.cache_hits:,} hits, {self.cache_misses:,} misses,"
            f" {self.cache_evictions:,} evicted; {self.cache_bytes / 1e6:,.0f} of"
            f" {self.cache_capacity / 1e6:,.0f} MB"
        )


@dataclass(frozen=True)
class LoaderStats:
    """What a loader did since it was made. str() of it is a table; see docs/stats.md.

    Attributes:
        batches, samples: that the caller received.
        startup_seconds: waited for first batches, of all epochs.
        stall_seconds: what all other steps waited.
        waits: (seconds, steps): how many of these waited for less than so many seconds, for a power of two
            each; the last is infinite.
        epochs_begun: so far.
        epochs: those begun last, at most 32, oldest first.
        stages: in order; see `StageStats`.
        decoded_by: samples per JPEG decoder, and those that Pillow decoded.
        stale_entries: samples whose entry points were ignored, as their file has changed since then.
        failures: every sample that was skipped or replaced, oldest first.
        memory_used, memory_allowed: bytes of all batches in flight or still held, now; and the budget.
        in_flight: batches being made now.
        decode_threads, read_threads: that run now.
        remote: what was fetched; None: the dataset is on this machine.
    """

    batches: int
    samples: int
    startup_seconds: float
    stall_seconds: float
    waits: tuple[tuple[float, int], ...]
    epochs_begun: int
    epochs: tuple[EpochStats, ...]
    stages: tuple[StageStats, ...]
    decoded_by: dict[str, int]
    stale_entries: int
    failures: tuple[SampleFailure, ...]
    memory_used: int
    memory_allowed: int
    in_flight: int
    decode_threads: int
    read_threads: int
    remote: RemoteStats | None = None

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; an infinite number of seconds is None."""
        waits = [(bound if math.isfinite(bound) else None, steps) for bound, steps in self.waits]
        return {**asdict(self), "waits": waits}

    def __str__(self) -> str:
        """Two tables, of stages and of the latest epochs, and a few lines; see docs/stats.md."""
        lines = [*_stage_table(self.stages), *_epoch_table(self.epochs[-PRINTED_EPOCHS:])]
        decoders = ", ".join(f"{name} {count:,}" for name, count in self.decoded_by.items() if count)
        lines += [
            f"{self.batches:,} batches, {self.samples:,} samples; decoded by: {decoders or 'nothing yet'}",
            f"memory: {self.memory_used / 1e6:,.0f} of {self.memory_allowed / 1e6:,.0f} MB allowed,"
            f" {self.in_flight} batches in flight; {self.decode_threads} decode and {self.read_threads}"
            " read threads",
        ]
        counts = [
            (action, sum(f.action == action for f in self.failures)) for action in ("skipped", "replaced")
        ]
        lines += [f"{count:,} samples {action}" for action, count in counts if count]
        if self.stale_entries:
            lines.append(
                f"{self.stale_entries:,} samples whose file has changed since headrace index: decoded without"
                " entry points; run it again"
            )
        if self.remote is not None:
            lines.append(str(self.remote))
        return "\n".join(line.rstrip() for line in lines)


def _stage_table(stages: tuple[StageStats, ...]) -> list[str]:
    """Share: of the time of those threads that make samples."""
    making = [stage for stage in stages if stage.name not in ("collate", "transfer")]
    busy = sum(stage.seconds for stage in making) or 1.0
    lines = [
        f"{'stage':<9}{'samples':>11}{'seconds':>11}{'share':>8}{'samples/s':>12}{'x threads':>12}{'MB':>11}"
    ]
    for stage in stages:
        share = f"{stage.seconds / busy:.1%}" if stage in making else ""
        rates = [f"{rate:,.0f}" if rate else "" for rate in (stage.samples_per_second, stage.supply)]
        size = f"{stage.bytes / 1e6:,.1f}" if stage.bytes else ""
        lines.append(
            f"{stage.name:<9}{stage.samples:>11,}{stage.seconds:>11.3f}{share:>8}{rates[0]:>12}{rates[1]:>12}"
            f"{size:>11}"
        )
    return lines


def _epoch_table(epochs: tuple[EpochStats, ...]) -> list[str]:
    """Median, p95, max: of a step's wait. Ready: the mean over the steps, and the queue's depth."""
    if not epochs:
        return []
    lines = [
        f"{'epoch':<9}{'samples':>11}{'seconds':>11}{'stall':>8}{'samples/s':>12}{'start-up s':>11}"
        f"{'median ms':>10}{'p95 ms':>10}{'max ms':>10}{'ready':>7}"
    ]
    for epoch in epochs:
        mark = {"running": "+", "stopped": "-"}.get(epoch.state, "")
        waits = (epoch.stall_median_seconds, epoch.stall_p95_seconds, epoch.stall_max_seconds)
        queue = epoch.queue
        ready = (
            f"{sum(queue.ready) / len(queue.ready):.1f}/{queue.depth}" if queue.depth and queue.ready else ""
        )
        lines.append(
            f"{f'{epoch.number}{mark}':<9}{epoch.samples:>11,}{epoch.seconds:>11.3f}{epoch.stall_share:>8.1%}"
            f"{epoch.samples_per_second:>12,.0f}{epoch.startup_seconds:>11.3f}"
            + "".join(f"{1e3 * wait:>10,.2f}" for wait in waits)
            + f"{ready:>7}"
        )
    if any(epoch.state != "finished" for epoch in epochs):
        lines.append("(+ running, - stopped before its end)")
    return lines


class BatchTimes(NamedTuple):
    """When a batch came to be, by `time.perf_counter_ns()`; 0: not known.

    Attributes:
        epoch: its number.
        iterator: tells apart the iterators of one loader; two may be of one epoch.
        number: of the batch, from 1; those whose samples were all skipped count, too.
        samples: in it.
        submitted_ns: it was asked for of those who make it.
        made_ns: it was seen to be done.
        taken_ns: the iterator took it, and its way to the device began.
    """

    epoch: int
    iterator: int
    number: int
    samples: int
    submitted_ns: int = 0
    made_ns: int = 0
    taken_ns: int = 0


class TraceEvent(NamedTuple):
    """What a thread did for a while.

    Attributes:
        name: the stage; "wait": the user was in next().
        thread: its number, as the system knows it.
        start_ns, end_ns: by `time.perf_counter_ns()`.
        batch: that the user waited for; None: the event is another stage's.
        queue: batches that were ready when the wait began, and in flight when it ended.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int
    batch: BatchTimes | None
    queue: tuple[int, int]


@dataclass(frozen=True, eq=False)
class EntryPoints:
    """Where decoding may start inside each JPEG file of a source; see docs/entry-points.md.

    Attributes:
        data: uint8; the packed entry points of all files.
        begins, ends: uint64 [n]; those of file i are data[begins[i]:ends[i]]; none where these are equal.
        mtimes: int64 [n]; time of modification, in nanoseconds since 1970, of the file that was indexed:
            they are ignored for a file that has another. None: not looked at (a pack's shards hold one
            sample's bytes beside the other's, and its index their checksums).
    """

    data: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    mtimes: npt.NDArray[np.int64] | None

    @property
    def indexed(self) -> int:
        """Files that have entry points."""
        return int((self.ends > self.begins).sum())


@dataclass(frozen=True, eq=False)
class Extents:
    """Which bytes of which file each sample is.

    Attributes:
        shards: uint32 [n]; number of the file.
        begins, sizes: uint64 [n]; in bytes.
    """

    shards: npt.NDArray[np.uint32]
    begins: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
