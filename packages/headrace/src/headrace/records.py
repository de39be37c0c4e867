"""Plain data that crosses layers. Nothing here computes anything or imports anything of ours."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

# The numbers that were drawn for one step of one sample: a crop's top and left in pixels, whether the image
# is flipped (1 or 0), …; `draws` of the step's class in headrace.transforms names them.
Draw = tuple[float, ...]

# Those of Pillow's images that files are read as.
Mode = Literal["RGB", "L"]

PRINTED_EPOCHS = 5
NO_BATCHES = "stages: none measured before the first batch"
NO_STAGES = (
    "stages: none measured. The calling thread does not time its samples; headrace doctor run SCRIPT does."
)


class SampleKey(NamedTuple):
    """Key of the random parameters of a sample, which depend on nothing else.

    Attributes:
        seed, epoch: seed and epoch of the loader; see `headrace.DataLoader`.
        sample: index in the dataset.
        occurrence: number of earlier occurrences of the index in the epoch.
    """

    seed: int
    epoch: int
    sample: int
    occurrence: int = 0


@dataclass(frozen=True, eq=False)
class BatchKeys:
    """The `SampleKey` of each sample of a batch.

    Attributes:
        seed, epoch: seed and epoch of all samples.
        samples: indices in the dataset, 0 or more: int64 [n].
        occurrences: numbers of earlier occurrences of these indices in the epoch: int64 [n].
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

    def at(self, positions: list[int]) -> BatchKeys:
        """The keys of some of the samples."""
        return BatchKeys(self.seed, self.epoch, self.samples[positions], self.occurrences[positions])


@dataclass(frozen=True)
class SampleFailure:
    """A sample that was skipped or replaced, and why. `index` is the dataset's: an int, or what else the
    sampler gives."""

    index: Any
    path: str | None
    cause: str
    action: str  # "skipped" or "replaced"

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return asdict(self)


@dataclass(frozen=True)
class NativeStats:
    """Totals of a native pool since it was created.

    Attributes:
        samples: number of samples made natively.
        failed: number of samples left to Pillow, or to the user's error policy.
        bytes_read: number of bytes read from files.
        pixels_decoded: number of pixels in the rectangles requested from decoders.
        stale_entries: number of samples whose entry points were ignored because their file has changed.
        nanoseconds: wall-clock time of the threads by stage, in nanoseconds.
        decoded_by: number of samples by decoder.
        decode_threads, read_threads: number of running threads; no reader runs while reads don't block.
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

    def __add__(self, other: NativeStats) -> NativeStats:
        """Totals of two pools together; the numbers of threads are those of the first."""
        names = ("samples", "failed", "bytes_read", "pixels_decoded", "stale_entries")
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in names}
        for name in ("nanoseconds", "decoded_by"):
            theirs = getattr(other, name)
            sums[name] = {key: count + theirs[key] for key, count in getattr(self, name).items()}
        return replace(self, **sums)


@dataclass(frozen=True)
class StageStats:
    """The cost of one stage, since the loader was created or in one epoch.

    Attributes:
        name: read, parse, decode, resize, store (native threads); pillow (Python threads); python (user
            code: Python threads, or worker processes with collation); render (native code in worker
            processes, for what is deferred, and the way to this process); collate; transfer (copies to the
            device).
        samples: number of samples that went through the stage.
        seconds: wall-clock time of its threads, summed, in seconds.
        bytes: number of bytes read, written or copied; 0 if that is meaningless.
        threads: number of threads or processes that run it now; native threads share all native stages.
    """

    name: str
    samples: int
    seconds: float
    bytes: int = 0
    threads: int = 1

    @property
    def samples_per_second(self) -> float:
        """Samples per second of one thread that runs this stage alone; 0 if nothing was measured."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    @property
    def supply(self) -> float:
        """Samples per second of all its threads if they ran this stage alone; 0 if nothing was measured."""
        return self.samples_per_second * self.threads

    @property
    def bytes_per_second(self) -> float:
        """Bytes per second of one thread; 0 if nothing was measured."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class QueueFill:
    """Numbers of batches in flight over the steps of one epoch.

    Attributes:
        depth: number of batches that may be in flight, at the latest step; 0 if it isn't known.
        ready: mean number of finished batches at the request of a batch, that batch included.
        in_flight: mean number of batches in progress or finished once a step had received its own.
    """

    depth: int
    ready: float
    in_flight: float


@dataclass(frozen=True)
class EpochStats:
    """Statistics of one epoch. A step's wait is the time that it spent in next(); the wait for the first
    batch counts as start-up, not as stall. See docs/stats.md.

    Attributes:
        number: number of the epoch, from 0.
        state: "running", "finished", or "stopped" if it was left before its end, or ended by an error.
        batches, samples: numbers of batches and samples that the caller received.
        seconds: duration from the start of the epoch to its end, or to the latest batch while it runs.
        startup_seconds: duration from the start of the epoch to its first batch; part of `seconds`.
        stall_seconds: sum of the waits of all steps but the first, in seconds.
        stall_median_seconds, stall_p95_seconds: median and 95th percentile of these waits, within 4 %.
        stall_max_seconds: longest of these waits, in seconds.
        stages: costs of the stages, in order.
        queue: fill of the queue.
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
        """The share of the time after the start-up that the steps waited, 0 to 1."""
        after = self.seconds - self.startup_seconds
        return min(1.0, self.stall_seconds / after) if after > 0 else 0.0

    @property
    def batches_per_second(self) -> float:
        """Batches per second, start-up included; 0 before the first batch."""
        return self.batches / self.seconds if self.batches else 0.0

    @property
    def samples_per_second(self) -> float:
        """Samples per second, start-up included; 0 before the first batch."""
        return self.samples / self.seconds if self.batches else 0.0


@dataclass(frozen=True)
class RemoteStats:
    """Statistics of this process for a dataset of URLs since it was first used. See docs/remote.md.

    Attributes:
        bytes_fetched: number of bytes that successful requests returned, gaps between records included.
        requests: number of requests that succeeded.
        latency_seconds: running mean of the time from a request to its first byte, retries included, in
            seconds.
        cache_hits, cache_misses: numbers of requested records that the cache held, and didn't hold.
        cache_evictions: number of records removed to make room.
        cache_bytes, cache_capacity: bytes that the cache holds for all processes of the node, and the limit.
    """

    bytes_fetched: int
    requests: int
    latency_seconds: float
    cache_hits: int
    cache_misses: int
    cache_evictions: int
    cache_bytes: int
    cache_capacity: int

    def __str__(self) -> str:
        """Two lines."""
        return (
            f"remote: {self.bytes_fetched / 1e6:,.1f} MB by {self.requests:,} requests,"
            f" {1e3 * self.latency_seconds:,.1f} ms to the first byte\n"
            f"cache: {self.cache_hits:,} hits, {self.cache_misses:,} misses,"
            f" {self.cache_evictions:,} evicted; {self.cache_bytes / 1e6:,.0f} of"
            f" {self.cache_capacity / 1e6:,.0f} MB"
        )


@dataclass(frozen=True)
class LoaderStats:
    """Statistics of a loader since it was created. str() of it is a table; see docs/stats.md.

    Attributes:
        batches, samples: numbers of batches and samples that the caller received.
        startup_seconds: sum of the waits for first batches, over all epochs.
        stall_seconds: sum of all other waits.
        waits: (seconds, number of waits shorter than that) by powers of two; the last bound is infinite.
        epochs_begun: number of epochs started so far.
        epochs: statistics of the epochs started last, at most 32, oldest first.
        stages: costs of the stages, in order; see `StageStats`.
        decoded_by: number of samples by decoder, and of those that Pillow decoded.
        stale_entries: number of samples whose entry points were ignored because their file has changed.
        failures: samples that were skipped or replaced, oldest first.
        memory_used, memory_allowed: bytes of all batches in flight or still held now, and their limit.
        in_flight: number of batches in progress now.
        decode_threads, read_threads: number of threads that run now.
        remote: statistics of what was fetched, or None if the dataset is on this machine.
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
        stages = _stage_table(self.stages) or [NO_STAGES if self.batches else NO_BATCHES]
        lines = [*stages, *_epoch_table(self.epochs[-PRINTED_EPOCHS:])]
        decoders = ", ".join(f"{name} {count:,}" for name, count in self.decoded_by.items() if count)
        lines += [
            f"{self.batches:,} batches, {self.samples:,} samples{decoders and f'; decoded by: {decoders}'}",
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
    """The share is that of the time that making samples takes, a stage's seconds being divided among its
    threads: most of the many that read wait for the storage."""
    if not stages:
        return []
    making = [stage for stage in stages if stage.name not in ("collate", "transfer")]
    busy = sum(stage.seconds / stage.threads for stage in making) or 1.0
    lines = [
        f"{'stage':<9}{'samples':>11}{'seconds':>11}{'share':>8}{'samples/s':>12}{'x threads':>12}{'MB':>11}"
    ]
    for stage in stages:
        share = f"{stage.seconds / stage.threads / busy:.1%}" if stage in making else ""
        rates = [f"{rate:,.0f}" if rate else "" for rate in (stage.samples_per_second, stage.supply)]
        size = f"{stage.bytes / 1e6:,.1f}" if stage.bytes else ""
        lines.append(
            f"{stage.name:<9}{stage.samples:>11,}{stage.seconds:>11.3f}{share:>8}{rates[0]:>12}{rates[1]:>12}"
            f"{size:>11}"
        )
    return lines


def _epoch_table(epochs: tuple[EpochStats, ...]) -> list[str]:
    """Median, p95 and max are of a step's wait; ready is a mean over the steps, and the queue's depth."""
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
        ready = f"{queue.ready:.1f}/{queue.depth}" if queue.depth else ""
        lines.append(
            f"{f'{epoch.number}{mark}':<9}{epoch.samples:>11,}{epoch.seconds:>11.3f}{epoch.stall_share:>8.1%}"
            f"{epoch.samples_per_second:>12,.0f}{epoch.startup_seconds:>11.3f}"
            + "".join(f"{1e3 * wait:>10,.2f}" for wait in waits)
            + f"{ready:>7}"
        )
    if any(epoch.state != "finished" for epoch in epochs):
        lines.append("(+ running, - stopped before its end)")
    return lines


class Work(NamedTuple):
    """Work of worker processes.

    Attributes:
        batches: number of batches made, without the first of each process.
        seconds: sum of the wall-clock times that they took to make, in seconds.
        on_core: processor time of the processes during it, in seconds.
        queued: time during it in which they could have run but had no core, in seconds, or None
            if that is not known.
    """

    batches: int
    seconds: float
    on_core: float
    queued: float | None = None


class BatchTimes(NamedTuple):
    """Times of a batch, by `time.perf_counter_ns()`; 0 if one isn't known.

    Attributes:
        epoch: number of the epoch.
        iterator: number of the iterator; two iterators of a loader may belong to one epoch.
        number: number of the batch, from 1; batches whose samples were all skipped count, too.
        samples: number of its samples.
        submitted_ns: time at which it was submitted.
        made_ns: time at which it was found to be finished.
        taken_ns: time at which the iterator took it and its transfer to the device started.
    """

    epoch: int
    iterator: int
    number: int
    samples: int
    submitted_ns: int = 0
    made_ns: int = 0
    taken_ns: int = 0


@dataclass(frozen=True)
class DeferralCounts:
    """Counts of how worker processes made the samples of a dataset that runs as Python.

    Attributes:
        opened: image files that were opened and not decoded at once.
        tensors: tensors that native code made of images.
        readers: number of images whose pixels the user's code read, by the place of that code.
        tensor_steps: number of tensors that a Compose passed to a step of the user's, by the step.
        patched: functions of libraries that the program has replaced, each with what is in its place.
        deferred: whether images were deferred; False if they stand for one of these functions.
        recorded: whether transforms were recorded; the same.
        problem: why no image can be deferred here, or "" if images can.
        differing: functions of OpenCV that give other values here than native code, and run as written.
        alike: those that give the same, each with OpenCV's settings, and its variant.
    """

    opened: int
    tensors: int
    readers: Mapping[str, int] = field(default_factory=dict)
    tensor_steps: Mapping[str, int] = field(default_factory=dict)
    patched: tuple[str, ...] = ()
    deferred: bool = True
    recorded: bool = True
    problem: str = ""
    differing: tuple[str, ...] = ()
    alike: Mapping[Any, int | None] = field(default_factory=dict)

    def __add__(self, other: DeferralCounts) -> DeferralCounts:
        return DeferralCounts(
            self.opened + other.opened,
            self.tensors + other.tensors,
            Counter(self.readers) + Counter(other.readers),
            Counter(self.tensor_steps) + Counter(other.tensor_steps),
            tuple(dict.fromkeys(self.patched + other.patched)),
            self.deferred and other.deferred,
            self.recorded and other.recorded,
            self.problem or other.problem,
            tuple(dict.fromkeys(self.differing + other.differing)),
            {**self.alike, **other.alike},
        )


class TraceEvent(NamedTuple):
    """An interval in which a thread was busy, or waited.

    Attributes:
        name: stage; "wait" for the time that the user spent in next().
        thread: the system's number of the thread.
        start_ns, end_ns: start and end by `time.perf_counter_ns()`.
        batch: batch that the user waited for, or None for other stages.
        queue: numbers of batches that were ready at the start of the wait and in flight at its end.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int
    batch: BatchTimes | None
    queue: tuple[int, int]


@dataclass(frozen=True, eq=False)
class EntryPoints:
    """Points at which decoding may start inside each JPEG file of a source; see docs/entry-points.md.

    Attributes:
        data: packed entry points of all files: uint8.
        begins, ends: places of those of file i, data[begins[i]:ends[i]], in `data`: uint64 [n].
        mtimes: times of modification of the indexed files, in nanoseconds since 1970: int64 [n]. Entry points
            of a file with another time are ignored. None if times aren't compared, as for packs, whose index
            has checksums.
    """

    data: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.uint64]
    mtimes: npt.NDArray[np.int64] | None

    @property
    def indexed(self) -> int:
        """The number of files that have entry points."""
        return int((self.ends > self.begins).sum())


@dataclass(frozen=True, eq=False)
class Extents:
    """The bytes of each sample in some files.

    Attributes:
        shards: numbers of the files: uint32 [n].
        begins, sizes: first byte, and number of bytes: uint64 [n].
    """

    shards: npt.NDArray[np.uint32]
    begins: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.uint64]
