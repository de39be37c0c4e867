"""The prefetcher without a device: nothing happens on the CPU, and on streams all is in the right order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from headrace.device import prefetcher as prefetcher_module
from headrace.device.place import check_device, resolve_device
from headrace.device.prefetcher import DevicePrefetcher
from headrace.errors import ConfigError
from headrace.records import BatchKeys

META = torch.device("meta")
KEYS = BatchKeys(1, 0, np.arange(2), np.zeros(2, np.int64))


def test_on_the_cpu_batches_are_the_same_objects() -> None:
    feed = DevicePrefetcher("cpu")
    batch = {"images": torch.zeros(2, 3), "names": ["a", "b"], "packed": pack_sequence([torch.ones(2)])}
    for device in (None, torch.device("cpu"), "cpu:0"):
        feed = DevicePrefetcher(device)
        assert feed.receive(feed.send(batch)) is batch
        assert (feed.copied_bytes, feed.copy_seconds) == (0, 0.0)
        feed.close()


def test_prepare_comes_with_sending_and_finish_with_receiving() -> None:
    done: list[str] = []

    def prepare(batch: Any, keys: BatchKeys | None) -> Any:
        assert keys is KEYS
        done.append("prepare")
        return batch + 1

    def finish(batch: Any, keys: BatchKeys | None) -> Any:
        assert keys is KEYS
        done.append("finish")
        return batch * 2

    feed = DevicePrefetcher(None, prepare, finish)
    sent = feed.send(torch.ones(2), KEYS)
    assert done == ["prepare"]
    assert feed.receive(sent).tolist() == [4, 4]
    assert done == ["prepare", "finish"]


@pytest.mark.parametrize("device", ["nonsense", "cuda:x", 3.5])
def test_devices_that_nobody_knows(device: Any) -> None:
    with pytest.raises(ConfigError, match=r"isn't one that torch knows: name it as in 'cuda'"):
        check_device(device)


def test_devices_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.device.place._accelerators", lambda: ("cuda", 2))
    monkeypatch.setattr("headrace.device.place._module", lambda _: None)
    with pytest.raises(ConfigError, match=r"'cuda:2'\) isn't there; this process has cuda:0, cuda:1\. Name"):
        check_device("cuda:2")
    with pytest.raises(ConfigError, match=r"device \('xpu'\) isn't there"):
        check_device("xpu")
    assert check_device("cuda") == torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 1)
    assert resolve_device("cuda") == torch.device("cuda", 1)
    assert resolve_device("cuda:0") == torch.device("cuda", 0)
    monkeypatch.setattr("headrace.device.place._accelerators", lambda: ("", 0))
    with pytest.raises(ConfigError, match=r"this process has none besides the CPU. Name one that is, or"):
        check_device("cuda")


def test_use_in_a_forked_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        _is_in_bad_fork = staticmethod(lambda: True)

    monkeypatch.setattr("headrace.device.place._accelerators", lambda: ("cuda", 1))
    monkeypatch.setattr("headrace.device.place._module", lambda _: Module)
    with pytest.raises(ConfigError, match=r"was forked from one that had used it already. Start it by spawn"):
        check_device("cuda")


class Streams:
    """Stands in for a device: streams and events that note what is asked of them, and copies to "meta"."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.current: list[str] = ["consumer"]
        self.finished = False
        streams, log = self, self.log

        class Stream:
            def __init__(self, name: str = "side", **_: Any) -> None:
                self.name = name

            def __enter__(self) -> None:
                streams.current.append(self.name)

            def __exit__(self, *error: object) -> None:
                streams.current.pop()

            def wait_stream(self, other: Stream) -> None:
                log.append(("wait for", self.name, other.name))

            def wait_event(self, event: Event) -> None:
                log.append(("wait", self.name, event.number))

        class Event:
            count = 0

            def __init__(self, device: Any = None, enable_timing: bool = False) -> None:
                assert device == META
                Event.count += 1
                self.number, self.timed, self.recorded = Event.count, enable_timing, False

            def record(self) -> None:
                self.recorded = True
                log.append(("event", streams.current[-1], self.number))

            def query(self) -> bool:
                assert self.recorded
                return streams.finished

            def elapsed_time(self, end: Event) -> float:
                assert self.timed
                assert end.timed
                assert streams.finished
                return 250.0

            def synchronize(self) -> None:
                log.append(("synchronize", self.number))
                streams.finished = True

        def to(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **rest: Any) -> Any:
            if device is None or rest:
                return original(tensor, *([] if device is None else [device]), **rest)
            log.append(("copy", streams.current[-1], tuple(tensor.shape), non_blocking))
            return original(tensor, device)

        original = torch.Tensor.to
        patch.setattr(torch, "Stream", Stream)
        patch.setattr(torch, "Event", Event)
        patch.setattr(torch.Tensor, "to", to)
        patch.setattr(
            torch.Tensor, "record_stream", lambda t, s: log.append(("record", tuple(t.shape), s.name))
        )
        patch.setattr(torch.accelerator, "current_stream", lambda _: Stream(streams.current[-1]))
        patch.setattr(prefetcher_module, "resolve_device", lambda _: META)


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    with monkeypatch.context() as patch:
        yield Streams(patch)


def test_the_order_of_copies_events_and_waits(streams: Streams) -> None:
    feed = DevicePrefetcher("meta")
    batch = [torch.zeros(2, 3), torch.zeros(2)]
    sent = feed.send(batch)
    assert streams.log == [
        ("event", "side", 1),
        ("copy", "side", (2, 3), True),
        ("copy", "side", (2,), True),
        ("event", "side", 2),
    ]
    streams.log.clear()
    received = feed.receive(sent)
    assert [tensor.device for tensor in received] == [META, META]
    assert streams.log == [
        ("wait", "consumer", 2),
        ("record", (2, 3), "consumer"),
        ("record", (2,), "consumer"),
    ]
    assert feed.copied_bytes == 32


def test_prepare_runs_on_the_side_and_finish_before_the_consumer(streams: Streams) -> None:
    where: list[str] = []

    def prepare(batch: Any, keys: BatchKeys | None) -> Any:
        where.append(streams.current[-1])
        return [torch.zeros(5, device=META), *batch[1:]]

    def finish(batch: Any, keys: BatchKeys | None) -> Any:
        where.append(streams.current[-1])
        return batch

    feed = DevicePrefetcher("meta", prepare, finish)
    received = feed.receive(feed.send([torch.zeros(2, 3), torch.zeros(2)]))
    assert where == ["side", "consumer"]
    assert received[0].shape == (5,)
    # The event that the consumer waits for comes after prepare's work, and its result is recorded too.
    assert streams.log[4:] == [
        ("event", "side", 3),
        ("wait", "consumer", 3),
        ("record", (5,), "consumer"),
        ("record", (2,), "consumer"),
    ]


def test_host_memory_lives_until_its_copy_is_over(streams: Streams) -> None:
    import weakref

    feed = DevicePrefetcher("meta")
    tensor = torch.zeros(4)
    alive = weakref.ref(tensor)
    sent = feed.send([tensor])
    del tensor
    feed.receive(sent)
    del sent
    assert alive() is not None
    assert feed.copy_seconds == 0.0
    feed.close()
    assert ("synchronize", 2) in streams.log
    assert alive() is None
    assert feed.copy_seconds == 0.25


def test_what_is_there_already_stays_as_it_is(streams: Streams) -> None:
    feed = DevicePrefetcher("meta")
    batch = {"there": torch.zeros(2, device=META), "name": "x"}
    sent = feed.send(batch)
    assert feed.receive(sent) is batch
    assert [entry[0] for entry in streams.log] == [
        "event",
        "event",
        "wait for",  # the stream that it was made on, which may not be that of the consumer
        "record",
        "event",
        "wait",
        "record",
    ]


def test_prepare_waits_for_what_others_made_on_the_device(streams: Streams) -> None:
    feed = DevicePrefetcher("meta", prepare=lambda batch, _: [batch[0] * 2, batch[1]])
    feed.send([torch.zeros(2, device=META), torch.zeros(3)])
    waits = ("wait for", "side", "consumer"), ("record", (2,), "side")
    assert [entry for entry in streams.log if entry[0] not in ("event", "copy")][:2] == list(waits)
    streams.log.clear()
    feed.send([torch.zeros(2), torch.zeros(3)])
    assert "wait for" not in [entry[0] for entry in streams.log]


class Opaque:
    """Moves itself, and shows nobody its tensors."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: Any, non_blocking: bool = False) -> Opaque:
        return Opaque(self.tensor.to(device, non_blocking=non_blocking))


class Recorded(Opaque):
    """Knows of streams."""

    def to(self, device: Any, non_blocking: bool = False) -> Recorded:
        return Recorded(self.tensor.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: Any) -> None:
        self.tensor.record_stream(stream)


def test_memory_that_cannot_be_recorded_is_the_consumers_from_the_start(streams: Streams) -> None:
    """A sparse tensor and an opaque object are copied on the consumer's stream: nothing else is safe."""
    feed = DevicePrefetcher("meta")
    batch = [torch.zeros(1), Opaque(torch.zeros(2)), Recorded(torch.zeros(3)), pack_sequence([torch.ones(4)])]
    received = feed.receive(feed.send(batch))
    # What packs a sequence copies too, but to no device.
    copies = [entry[1:3] for entry in streams.log if entry[0] == "copy" and entry[3]]
    assert [c for c in copies if c[0] == "side"] == [("side", (1,)), ("side", (3,)), ("side", (4,))]
    assert [c for c in copies if c[0] == "consumer"] == [("consumer", (2,))]
    assert received[1].tensor.device == META
    assert type(received[3]) is PackedSequence
    recorded = {entry[1] for entry in streams.log if entry[0] == "record"}
    assert {(1,), (3,), (4,)} <= recorded
    assert (2,) not in recorded
    assert streams.log[-1][:2] == ("event", "consumer")
