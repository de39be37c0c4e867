"""The prefetcher without a device, for which nothing happens, and the devices that are refused.

What happens on one is tested on the simulated accelerator, in tests/accelerator/test_on_feed.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from headrace.device.place import check_device, resolve_device
from headrace.device.prefetcher import DevicePrefetcher
from headrace.errors import ConfigError
from headrace.records import BatchKeys

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
