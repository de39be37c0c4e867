"""Finds a number of worker processes that may be faster, from what those of an epoch have shown.

Processes aren't tuned while they run: to start and to end them takes longer than a window of the tuner, and
what code that isn't seeded draws depends on their number. So `explain()` says it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from headrace._machine import usable_cores
from headrace.records import EpochStats, Work

FEWEST_BATCHES = 20
# A loop that waits for a batch longer than this many times the time to make it waits for it to be sent.
SENDING = 1.1
# More processes help samples that wait for anything but a core for a larger part of their time than this.
MOSTLY_WAITING = 0.75
# Samples that are on a core for a larger part of their time than this compute.
COMPUTING = 0.5
# The parts of the time that workers are busy, and that the loop waits, from which on more of them would help.
BUSY, STALLED = 0.7, 0.1


class WorkersAdvice(NamedTuple):
    """A number of worker processes to try, and why.

    Attributes:
        workers: a value of `num_workers`; 0: none.
        reason: why, in words.
    """

    workers: int
    reason: str


def most_workers() -> int:
    """The largest number of processes that is worth trying: four for each usable core, at least 16, as
    samples may wait."""
    return max(16, 4 * usable_cores())


def advise(work: Work, epoch: EpochStats, workers: int) -> WorkersAdvice | None:
    """Another number of processes, or None if the present one seems right, or too little is known.

    Args:
        work: what the processes have done.
        epoch: the latest epoch, which may be running.
        workers: the present number of processes.
    """
    later = epoch.batches - 1  # the first one is the start-up
    if min(work.batches, later) < FEWEST_BATCHES:
        return None
    making, waiting = work.seconds / work.batches, epoch.stall_seconds / later
    share = work.on_core / work.seconds
    # Of samples that compute, the rest of the time was spent waiting for a core, which the caller has.
    alone = min(1.0, share) * making if share > COMPUTING else making
    if waiting > SENDING * alone:
        sent = f"the loop waits {_time(waiting)} for it to be sent"
        return WorkersAdvice(0, f"a batch takes {_time(alone)} to make, and {sent}")
    if work.queued is None:  # waiting for a core and for a disk look alike
        return None
    busy = making * later / (workers * (epoch.seconds - epoch.startup_seconds))
    needed = (work.on_core + work.queued) / work.seconds
    most = min(most_workers(), math.ceil(usable_cores() / max(needed, 0.01)))
    if 1 - needed > MOSTLY_WAITING and busy > BUSY and epoch.stall_share > STALLED and most > workers:
        reason = (
            f"a batch takes {_time(making)} to make, {1 - needed:.0%} of it waiting for something other than"
            " a core, such as a disk or a network. headrace tune finds the best number"
        )
        return WorkersAdvice(most, reason)
    return None


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
