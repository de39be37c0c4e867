"""A trace is Chrome's format, its events nest, and its sums are those of stats()."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.export.perfetto import write_trace
from headrace.records import BatchTimes, TraceEvent
from support.jpegs import image_folder

Event = dict[str, Any]

# What the format asks of each phase.
FIELDS = {
    "M": {"ph", "pid", "tid", "name", "args"},
    "X": {"ph", "pid", "tid", "name", "ts", "dur"},
    "C": {"ph", "pid", "name", "ts", "args"},
    "b": {"ph", "pid", "tid", "name", "ts", "cat", "id"},
    "e": {"ph", "pid", "tid", "name", "ts", "cat", "id"},
}


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.tensor(index)


def checked(text: str) -> list[Event]:
    """The events of a trace, after a look at whether the format allows them."""
    events: list[Event] = json.loads(text)["traceEvents"]
    for event in events:
        assert FIELDS[event["ph"]] <= set(event)
        assert event["pid"] == os.getpid()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    named = {event["tid"] for event in events if event["name"] == "thread_name"}
    assert {event["tid"] for event in events if event["ph"] == "X"} <= named
    check_nesting(events)
    check_async(events)
    return events


def check_nesting(events: list[Event]) -> None:
    """Of each thread's events, any two are apart or one is inside the other."""
    for thread in {event["tid"] for event in events}:
        spans = [(e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X" and e["tid"] == thread]
        open_until: list[float] = []
        for begin, end in sorted(spans, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= begin + 1e-3:  # ts are rounded to nanoseconds
                open_until.pop()
            assert not open_until or end <= open_until[-1] + 1e-3
            open_until.append(end)


def check_async(events: list[Event]) -> None:
    """Of each id, every begin has its end, and the innermost ends first."""
    by_id = defaultdict(list)
    for event in events:
        if event["ph"] in "be":
            by_id[event["cat"], event["id"]].append(event)
    for chain in by_id.values():
        running: list[str] = []
        assert [event["ts"] for event in chain] == sorted(event["ts"] for event in chain)
        for event in chain:
            if event["ph"] == "b":
                running.append(event["name"])
            else:
                assert running.pop() == event["name"]
        assert not running


def spans(events: list[Event], name: str) -> list[Event]:
    return [event for event in events if event["ph"] == "X" and event["name"] == name]


def test_a_native_epoch(tmp_path: Path) -> None:
    steps = transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor()])
    dataset = ImageFolder(str(image_folder(tmp_path, 24, side=60)), steps)
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    for _images, _labels in loader:
        pass
    path = tmp_path / "trace.json"
    with loader.trace(path):
        for _images, _labels in loader:
            time.sleep(0.005)
    for _images, _labels in loader:
        pass
    events = checked(path.read_text())
    epoch = loader.stats().epochs[1]
    waits = spans(events, "wait")
    assert [wait["args"] for wait in waits] == [
        {"epoch": 1, "batch": n, "samples": 4} for n in (1, 2, 3, 4, 5, 6)
    ]
    assert sum(wait["dur"] for wait in waits[1:]) == pytest.approx(1e6 * epoch.stall_seconds, abs=1)
    steps_between = spans(events, "step")
    assert [step["args"]["batch"] for step in steps_between] == [1, 2, 3, 4, 5]
    assert all(step["dur"] >= 5000 for step in steps_between)
    assert len(spans(events, "collate")) == 6
    phases = Counter((event["ph"], event["name"]) for event in events if event["ph"] in "be")
    assert set(phases.values()) == {6}
    assert {name for _, name in phases} == {"batch", "making", "ready", "sent"}
    counters = [e["args"]["batches"] for e in events if e["ph"] == "C" and e["name"] == "batches in flight"]
    assert counters[0] == 4
    assert counters[-1] == 0


def test_samples_on_threads_are_on_the_tracks_of_their_threads(tmp_path: Path) -> None:
    loader = headrace.DataLoader(Slow(), batch_size=4, num_workers=2, worker_kind="thread")
    with loader.trace(tmp_path / "trace.json"):
        for _batch in loader:
            pass
    events = checked((tmp_path / "trace.json").read_text())
    assert len(spans(events, "python")) == 24
    me = threading.get_native_id()
    assert me not in {event["tid"] for event in spans(events, "python")}
    assert {event["tid"] for event in spans(events, "wait")} == {me}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert all(names[event["tid"]].startswith("headrace-sample") for event in spans(events, "python"))


def test_two_iterators_of_one_thread_nest(tmp_path: Path) -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
    with loader.trace(tmp_path / "trace.json"):
        for _pair in zip(loader, loader, strict=True):
            pass
        for _batch in loader:
            pass
    events = checked((tmp_path / "trace.json").read_text())
    assert len(spans(events, "wait")) == 12
    assert [step["args"]["epoch"] for step in spans(events, "step")] == [2, 2, 2]


def test_what_failed_is_written_too_and_tracing_ends(tmp_path: Path) -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(8)), batch_size=2)

    def train() -> None:
        with loader.trace(tmp_path / "trace.json"):
            for number, _batch in enumerate(loader):
                if number == 1:
                    raise KeyError("the user's")

    with pytest.raises(KeyError):
        train()
    assert len(spans(checked((tmp_path / "trace.json").read_text()), "wait")) == 2
    with loader.trace(tmp_path / "another.json"):
        list(loader)
    assert len(spans(checked((tmp_path / "another.json").read_text()), "wait")) == 4


def test_a_second_trace_at_the_same_time_is_refused_and_spoils_nothing(tmp_path: Path) -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(8)), batch_size=2)
    path = tmp_path / "trace.json"
    with loader.trace(path):
        for _batch in loader:
            pass
        with pytest.raises(headrace.ConfigError, match="traced already"), loader.trace(path):
            pass
    assert len(spans(checked(path.read_text()), "wait")) == 4
    with pytest.raises(FileNotFoundError), loader.trace(tmp_path / "no folder" / "trace.json"):
        pass
    with loader.trace(path):
        pass
    assert spans(checked(path.read_text()), "wait") == []


def test_times_begin_at_the_earliest_and_unknown_ones_are_left_out() -> None:
    batch = BatchTimes(3, 1, 7, 64, submitted_ns=5_000_000, made_ns=0, taken_ns=8_000_500)
    file = io.StringIO()
    write_trace(file, [TraceEvent("wait", 42, 6_000_000, 9_000_000, batch, (1, 2))], {42: "main"})
    events = checked(file.getvalue())
    assert [(e["ph"], e["name"], e["ts"], e.get("dur")) for e in events if "ts" in e] == [
        ("X", "wait", 1000.0, 3000.0),
        ("C", "batches ready", 1000.0, None),
        ("C", "batches in flight", 4000.0, None),
        ("b", "batch", 0.0, None),
        ("b", "making", 0.0, None),
        ("e", "making", 3000.5, None),
        ("b", "sent", 3000.5, None),
        ("e", "sent", 4000.0, None),
        ("e", "batch", 4000.0, None),
    ]
