"""From measurements to settings. Pure functions: nothing here measures, waits or starts anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from headrace.records import Probe

Kind = Literal["caller", "thread", "process"]

# Below this share of the processor's time a sample mostly waits: for a disk, a network, a lock, a sleep.
WAITING_BELOW = 0.5
# Threads hand the GIL from one to the other a few times for each sample, which takes about this long however
# many they are (two cores of an AMD EPYC: samples of 5 ms come every 0.23 ms from 24 threads; from 64 they
# come no sooner, and take twice as much of the processor).
HANDOVER_SECONDS = 2e-4
MOST_WAITING_THREADS = 64
# What a worker process spends on handing a batch over, beside making it, in seconds: shared memory for each
# tensor, pickling, a pipe. (torch's workers on two cores of an AMD EPYC made 256 rows in 0.6 ms, and brought
# a batch every 1.7 ms, two of them.)
SENDING_SECONDS = 2.5e-3
# A batch that takes longer is worth trying in a process, whatever the above says of it; one that takes less
# than the other is worth trying in the caller's thread.
TRY_PROCESSES_FROM, TRY_CALLER_UP_TO = 3e-4, 2e-2
# Two threads that hold the GIL by turns reach 1; two that don't need it reach 2.
GAIN_OF_FREE_THREADS = 1.7
# Batches ready ahead of the step: one being copied, and some for steps that end sooner than others. Threads
# work on one batch after the other, so that fewer will do.
DEPTH, DEPTH_OF_THREADS = 4, 3


@dataclass(frozen=True)
class Workers:
    """How the samples of a Python dataset are made.

    Attributes:
        kind: "thread"s of this process, worker "process"es, or the "caller"'s thread when it asks.
        count: of them; 0 with "caller".
        reason: why, in words.
    """

    kind: Kind
    count: int
    reason: str

    def __str__(self) -> str:
        """Such as ``8 threads: …``."""
        if self.kind == "caller":
            return f"none: {self.reason}"
        plural = "" if self.count == 1 else "es" if self.kind == "process" else "s"
        return f"{self.count} {self.kind}{plural}: {self.reason}"


def choose_workers(probe: Probe | str, *, batch_size: int, cores: int, count: int | None) -> Workers:
    """Where to make the samples that `probe` tells of.

    Args:
        probe: what was measured, or why nothing could be.
        batch_size: samples of a batch.
        cores: that this process may use.
        count: workers that the user asked for; None: as many as are best.
    """
    processes = cores if count is None else count
    if isinstance(probe, str):
        return Workers("process", processes, probe)
    if probe.on_device and count is None:
        return Workers("caller", 0, "samples are on a device, which worker processes can't share")
    made_in = probe.seconds * batch_size
    if count is None and made_in * (cores - 1) < SENDING_SECONDS:
        made = f"a batch of them takes {_time(made_in)}, and sending it from a worker would take longer"
        return Workers("caller", 0, f"{_cost(probe)}; {made}")
    if probe.draws:
        return Workers("process", processes, f"{_cost(probe)}; random numbers are drawn, which threads share")
    if probe.against_threads is not None:
        return Workers("process", processes, f"{_cost(probe)}; {probe.against_threads}")
    if _waits(probe):
        threads = count or waiting_threads(probe, cores)
        return Workers("thread", threads, f"{_cost(probe)}; threads can wait side by side")
    if probe.gain is not None and probe.gain >= GAIN_OF_FREE_THREADS:
        made = f"two threads made {probe.gain:.1f} times as many as one"
        return Workers("thread", processes, f"{_cost(probe)}; {made}")
    held = "" if probe.gain is None else f": two threads made {probe.gain:.1f} times as many as one"
    return Workers("process", processes, f"{_cost(probe)}; holds the GIL{held}")


def insist_on_threads(workers: Workers, probe: Probe | str, cores: int, count: int | None) -> Workers:
    """Threads, as the user wants them, whatever `choose_workers` would rather have: `workers`."""
    if workers.kind == "thread":
        return workers
    waiting = waiting_threads(probe, cores) if isinstance(probe, Probe) and _waits(probe) else cores
    return Workers("thread", count or waiting, f"worker_kind='thread'; left to itself: {workers}")


def worth_trying(probe: Probe | str, workers: Workers, *, batch_size: int, cores: int) -> bool:
    """Whether the other kind should be tried as well, live: processes in the place of threads or of the
    caller's thread, or the caller's thread in the place of processes.

    Whether it is better is for measurement: threads take the GIL from the training step, the step waits for
    what the caller's thread makes, and what a process makes must be sent.
    """
    if isinstance(probe, str) or probe.against_threads is not None or probe.on_device:
        return False  # what one opens or remembers, the other must not have
    made_in = probe.seconds * batch_size
    if workers.kind == "caller":
        return made_in > TRY_PROCESSES_FROM
    if workers.kind == "process":
        return made_in < TRY_CALLER_UP_TO
    threads = min(workers.count / max(probe.seconds, 1e-9), cores / max(probe.cpu_seconds, 1e-9))
    return cores / max(probe.seconds, 1e-9) >= 0.8 * threads


def waiting_threads(probe: Probe, cores: int) -> int:
    """Threads for samples that wait: as many as keep `cores` busy, or as can take turns with the GIL."""
    by_cores = cores * probe.seconds / max(probe.cpu_seconds, 1e-9)
    by_turns = probe.seconds / HANDOVER_SECONDS
    return max(2 * cores, min(MOST_WAITING_THREADS, math.ceil(min(by_cores, by_turns))))


def batches_in_flight(workers: Workers, batch_size: int) -> int:
    """Batches ahead: enough for every thread to have a sample, beside `DEPTH`."""
    if workers.kind == "process":
        return max(DEPTH, 2 * workers.count)
    return max(DEPTH_OF_THREADS, math.ceil(2 * workers.count / max(1, batch_size)) + 1)


def _waits(probe: Probe) -> bool:
    # A sample that is over sooner than threads change hands isn't worth handing over.
    return probe.seconds >= 2e-4 and probe.cpu_seconds < WAITING_BELOW * probe.seconds


def _cost(probe: Probe) -> str:
    share = probe.cpu_seconds / probe.seconds if probe.seconds > 0 else 1.0
    return f"a sample takes {_time(probe.seconds)}, {share:.0%} of it on a core"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
