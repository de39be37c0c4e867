"""Finds a number of worker processes that may be faster, from what those of an epoch have shown.

Processes aren't tuned while they run: to start and to end them takes longer than a window of the tuner, and
what code that isn't seeded draws depends on their number. So `explain()` says it.
"""

from __future__ import annotations

import math

from headrace._machine import usable_cores
from headrace.records import EpochStats, Work

FEWEST_BATCHES = 20
# A loop that waits for a batch longer than this many times the time to make it waits for it to be sent.
SENDING = 1.1
# More processes help samples that wait for anything but a core for a larger part of their time than this.
MOSTLY_WAITING = 0.75
# Samples that are on a core for a larger part of their time than this compute.
COMPUTING = 0.5
# More than four processes for each usable core, or 16 in all, as samples may wait, aren't worth trying.
FEW, FOR_EACH_CORE = 16, 4
# The parts of the time that workers are busy, and that the loop waits, from which on more of them would help.
BUSY, STALLED = 0.7, 0.1


def advise(work: Work, epoch: EpochStats, workers: int) -> tuple[int, str] | None:
    """Another number of processes, 0 for none, and why; or None if the present one, `workers`, seems right,
    or too little is known of their work and of the latest epoch, which may be running."""
    later = epoch.batches - 1  # the first one is the start-up
    if min(work.batches, later) < FEWEST_BATCHES:
        return None
    making, waiting = work.seconds / work.batches, epoch.stall_seconds / later
    share = work.on_core / work.seconds
    # Of samples that compute, the rest of the time was spent waiting for a core, which the caller has.
    alone = min(1.0, share) * making if share > COMPUTING else making
    if waiting > SENDING * alone:
        sent = f"the loop waits {_time(waiting)} for it to be sent"
        return 0, f"a batch takes {_time(alone)} to make, and {sent}"
    if work.queued is None:  # waiting for a core and for a disk look alike
        return None
    busy = making * later / (workers * (epoch.seconds - epoch.startup_seconds))
    needed = (work.on_core + work.queued) / work.seconds
    most = min(max(FEW, FOR_EACH_CORE * usable_cores()), math.ceil(usable_cores() / max(needed, 0.01)))
    if 1 - needed > MOSTLY_WAITING and busy > BUSY and epoch.stall_share > STALLED and most > workers:
        reason = (
            f"a batch takes {_time(making)} to make, {1 - needed:.0%} of it waiting for something other than"
            " a core, such as a disk or a network. headrace tune finds the best number"
        )
        return most, reason
    return None


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
