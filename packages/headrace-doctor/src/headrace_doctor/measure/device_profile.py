"""Profiles the training step on an accelerator: how long it is busy, and what the thread waits for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from headrace_doctor.measure.observed import DeviceFacts

# Names of Kineto, PyTorch's profiler; HIP's are CUDA's with another prefix.
SYNCHRONISE = ("StreamSynchronize", "DeviceSynchronize", "EventSynchronize")
READING_BACK = ("aten::item", "aten::_local_scalar_dense")
COPYING = ("aten::copy_", "aten::_to_copy")
TO_DEVICE = "Memcpy HtoD"
PAGEABLE = "Pageable"


class Event(NamedTuple):
    """A call in a thread of the processor, or something that ran on the device; times in seconds."""

    name: str
    start: float
    end: float
    on_device: bool
    thread: int = 0


@contextmanager
def profiling() -> Iterator[list[Event]]:
    """Profiles the body; the list that it yields is filled at the end."""
    found: list[Event] = []
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    elif hasattr(torch, "xpu") and torch.xpu.is_available():
        activities.append(torch.profiler.ProfilerActivity.XPU)
    # torch warns otherwise, since 2.11, that each cycle clears the events of the one before. There is one.
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        yield found
    for event in profile.events():
        span = event.time_range  # microseconds
        on_device = event.device_type.name != "CPU"
        found.append(Event(event.name, span.start / 1e6, span.end / 1e6, on_device, event.thread))


def device_facts(events: Sequence[Event], steps: int, batch_nbytes: int) -> DeviceFacts:
    """The average step on the device, of so many; copies are taken to be of batches of `batch_nbytes`, as
    profiles don't always say how much was copied.
    """
    on_device = [event for event in events if event.on_device]
    calls = [event for event in events if not event.on_device]
    waits = [call for call in calls if call.name.endswith(SYNCHRONISE)]
    reads = [call for call in calls if call.name == READING_BACK[0]]
    copies = [call for call in calls if call.name in COPYING]
    in_copies = [wait for wait in waits if any(_within(wait, copy) for copy in copies)]
    in_reads = [wait for wait in waits if any(_within(wait, read) for read in reads)]
    other = [wait for wait in waits if wait not in in_copies and wait not in in_reads]
    to_device = [event for event in on_device if event.name.startswith(TO_DEVICE)]
    pageable = [event for event in to_device if PAGEABLE in event.name]
    share = _seconds(pageable) / _seconds(to_device) if to_device else 0.0
    counts: dict[str, float] = {}
    for call in [*reads, *other]:
        counts[call.name] = counts.get(call.name, 0.0) + 1 / steps
    return DeviceFacts(
        busy_seconds=_union(on_device) / steps,
        synchronisations=counts,
        synchronise_seconds=(_union([*in_reads, *other])) / steps,
        pageable_bytes=share * batch_nbytes,
        pinned_bytes=(1 - share) * batch_nbytes if to_device else 0.0,
        blocking_copy_seconds=_union(in_copies) / steps,
    )


def _within(inner: Event, outer: Event) -> bool:
    return inner.thread == outer.thread and outer.start <= inner.start and inner.end <= outer.end


def _seconds(events: Iterable[Event]) -> float:
    return sum(event.end - event.start for event in events)


def _union(events: Iterable[Event]) -> float:
    """Seconds in which at least one of them lasts."""
    whole, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda one: one.start):
        whole += max(0.0, event.end - max(event.start, until))
        until = max(until, event.end)
    return whole
