"""Plain data that crosses layers. Nothing here computes anything or imports anything of ours."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

# What was drawn for one step of one sample, in pixels of that step's input:
# RandomResizedCrop (top, left, height, width); RandomCrop (top, left, 0, 0) in the padded image;
# flips (1 or 0, 0, 0, 0); RandomErasing (top, left, height, width), all 0 where nothing is erased; steps
# without randomness (0, 0, 0, 0).
Draw = tuple[int, int, int, int]


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
class Probe:
    """What a few samples of a dataset told, made one after the other in one thread.

    Attributes:
        samples: that were made.
        seconds, cpu_seconds: of the typical sample: by the wall clock, and of the processor.
        nbytes: of one sample's tensors.
        draws: whether they drew from the generators of the process (torch's, NumPy's or Python's).
        against_threads: why threads can't share the dataset; None: nothing is known against it.
        gain: samples per second of two threads as a multiple of one thread's; None: not measured.
    """

    samples: int
    seconds: float
    cpu_seconds: float
    nbytes: int
    draws: bool
    against_threads: str | None
    gain: float | None


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
    """What one stage cost since the loader was made.

    Attributes:
        name: read, parse, decode, resize, store (native threads); pillow (Python threads); collate, wait (the
            caller's thread).
        samples: that went through it.
        seconds: thread time by the wall clock, added up over the threads.
        bytes: that it read or wrote; 0 where that says nothing.
    """

    name: str
    samples: int
    seconds: float
    bytes: int = 0

    @property
    def samples_per_second(self) -> float:
        """What one thread would do with this stage alone; 0 where nothing was measured."""
        return self.samples / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class LoaderStats:
    """What a loader did since it was made.

    Attributes:
        batches, samples: that the caller received.
        stages: in order; see `StageStats`.
        decoded_by: samples per JPEG decoder, and those that Pillow decoded.
        stale_entries: samples whose entry points were ignored, as their file has changed since then.
        failures: every sample that was skipped or replaced, oldest first.
        memory_used, memory_allowed: bytes of all batches in flight or still held, now; and the budget.
        in_flight: batches being made now.
        decode_threads, read_threads: that run now.
    """

    batches: int
    samples: int
    stages: tuple[StageStats, ...]
    decoded_by: dict[str, int]
    stale_entries: int
    failures: tuple[SampleFailure, ...]
    memory_used: int
    memory_allowed: int
    in_flight: int
    decode_threads: int
    read_threads: int

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return asdict(self)

    def __str__(self) -> str:
        """A table: stage, samples, seconds, share of the native threads' time, samples/s, bytes."""
        working = [stage for stage in self.stages if stage.name not in ("wait", "collate")]
        busy = sum(stage.seconds for stage in working) or 1.0
        lines = [f"{'stage':<8} {'samples':>10} {'seconds':>10} {'share':>7} {'samples/s':>11} {'MB':>10}"]
        for stage in self.stages:
            share = f"{stage.seconds / busy:>6.1%}" if stage in working else ""
            rate = f"{stage.samples_per_second:,.0f}" if stage.seconds else ""
            size = f"{stage.bytes / 1e6:,.1f}" if stage.bytes else ""
            lines.append(
                f"{stage.name:<8} {stage.samples:>10,} {stage.seconds:>10.3f} {share:>7} {rate:>11}"
                f" {size:>10}"
            )
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
        return "\n".join(lines)


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
