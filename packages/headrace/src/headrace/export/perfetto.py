"""A trace as Chrome's JSON, which ui.perfetto.dev and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TextIO

from headrace.records import BatchTimes, TraceEvent

Json = dict[str, Any]


def write_trace(file: TextIO, events: Iterable[TraceEvent], threads: Mapping[int, str]) -> None:
    """Writes events, in whatever order they are; `threads` has names by number.

    Each thread is a track of what it did: waits in next(), the steps between them, stages. Batches are
    asynchronous events around their phases: making, ready, sent. How many were ready when a wait began, and
    in flight when it ended, are counters. Times begin at the earliest.
    """
    # If two begin at once, the one around the other comes first.
    events = sorted(events, key=lambda event: (event.start_ns, -event.end_ns))
    begins = [event.start_ns for event in events]
    batches = [event.batch for event in events if event.batch is not None]
    begins += [t for one in batches for t in (one.submitted_ns, one.made_ns, one.taken_ns) if t]
    zero = min(begins, default=0)
    file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
    file.write(json.dumps(_meta("process_name", 0, "headrace")))
    for thread, name in threads.items():
        file.write(",\n" + json.dumps(_meta("thread_name", thread, name)))
    for record in (*_steps(events), *_waits(events), *_stages(events), *_batches(events)):
        record["pid"] = os.getpid()
        for field in ("ts", "dur"):
            if field in record:
                record[field] = (record[field] - (zero if field == "ts" else 0)) / 1000  # µs
        file.write(",\n" + json.dumps(record))
    file.write("\n]}\n")


def _meta(kind: str, thread: int, name: str) -> Json:
    return {"ph": "M", "pid": os.getpid(), "tid": thread, "name": kind, "args": {"name": name}}


def _span(event: TraceEvent, category: str) -> Json:
    times = {"ts": event.start_ns, "dur": event.end_ns - event.start_ns}
    return {"ph": "X", "name": event.name, "cat": category, "tid": event.thread, **times}


def _label(batch: BatchTimes) -> Json:
    return {"epoch": batch.epoch, "batch": batch.number, "samples": batch.samples}


def _steps(events: list[TraceEvent]) -> Iterator[Json]:
    """Yields what the user did between two waits of one thread for one iterator."""
    latest: dict[int, TraceEvent] = {}
    for event in events:
        if event.batch is None:
            continue
        before = latest.get(event.thread)
        if before is not None and before.batch is not None and before.batch.iterator == event.batch.iterator:
            step = TraceEvent("step", event.thread, before.end_ns, event.start_ns, None, (0, 0))
            yield {**_span(step, "step"), "args": _label(before.batch)}
        latest[event.thread] = event


def _waits(events: list[TraceEvent]) -> Iterator[Json]:
    for event in events:
        if event.batch is not None:
            yield {**_span(event, "step"), "args": _label(event.batch)}
            counters = ("batches ready", event.start_ns), ("batches in flight", event.end_ns)
            for (name, ts), value in zip(counters, event.queue, strict=True):
                yield {"ph": "C", "name": name, "tid": event.thread, "ts": ts, "args": {"batches": value}}


def _stages(events: list[TraceEvent]) -> Iterator[Json]:
    return (_span(event, "stage") for event in events if event.batch is None)


def _batches(events: list[TraceEvent]) -> Iterator[Json]:
    """Yields the phases of batches whose times are known, from the first that is."""
    for event in events:
        batch = event.batch
        if batch is None:
            continue
        marks = [("making", batch.submitted_ns), ("ready", batch.made_ns), ("sent", batch.taken_ns)]
        known = [mark for mark in marks if mark[1]]
        if not known:
            continue
        ends = [ts for _, ts in known[1:]] + [event.end_ns]
        common = {"cat": "batch", "id": f"{batch.iterator}.{batch.number}", "tid": event.thread}
        yield {**common, "ph": "b", "name": "batch", "ts": known[0][1], "args": _label(batch)}
        for (name, begin), end in zip(known, ends, strict=True):
            yield {**common, "ph": "b", "name": name, "ts": begin}
            yield {**common, "ph": "e", "name": name, "ts": end}
        yield {**common, "ph": "e", "name": "batch", "ts": event.end_ns}
