"""Each rule of docs/hazards.md: without the line that keeps it, one of these tests fails (hazards.py).

Consumers lag far behind Python and drop each batch at once. Page-locked memory is as others have locked it,
written again as soon as it is free.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import headrace
from accelerator import module as simulated
from headrace.device.prefetcher import DevicePrefetcher
from headrace.errors import ConfigError
from headrace.records import BatchKeys
from support.processes import exit_of_fork

pytestmark = pytest.mark.gpu
SEEDS = range(int(os.environ.get("HEADRACE_SEEDS", "20")))
DELAY = 3e-4
SIZE = 4096


@pytest.fixture(params=SEEDS)
def delays(gpu: torch.device, request: pytest.FixtureRequest) -> int:
    simulated.configure(request.param, DELAY, forgetful=True)
    seed: int = request.param
    return seed


def host(k: int) -> torch.Tensor:
    return torch.full((SIZE,), k, dtype=torch.int32).pin_memory()


class Opaque:
    """Moves itself, and shows nobody its tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: Any, non_blocking: bool = False) -> Opaque:
        return type(self)(self.tensor.to(device, non_blocking=non_blocking))


class Recorded(Opaque):
    """The same, but its memory can be recorded."""

    def record_stream(self, stream: Any) -> None:
        self.tensor.record_stream(stream)


class InPlace(dict[str, Any]):
    """Drops its tensor on the host as soon as it is moved."""

    def to(self, device: Any, non_blocking: bool = False) -> InPlace:
        self["x"] = self["x"].to(device, non_blocking=non_blocking)
        return self


def there(k: int) -> torch.Tensor:
    """Made on the device, late."""
    simulated.busy(3e-4)
    return torch.full((SIZE,), k, dtype=torch.int32, device="simulated")


def plus_one(batch: Any, keys: BatchKeys | None) -> Any:
    return [batch[0] + 1, *batch[1:]]


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], torch.Tensor], Any]] = {
    "tensor": (host, lambda value: value, None),
    "prepared": (host, lambda value: value, plus_one),
    "opaque": (lambda k: Opaque(host(k)), lambda value: value.tensor, None),
    "recorded": (lambda k: Recorded(host(k)), lambda value: value.tensor, None),
    "in place": (lambda k: InPlace(x=host(k)), lambda value: value["x"], None),
    "there": (there, lambda value: value, None),
    "there, prepared": (there, lambda value: value, plus_one),
}


@pytest.mark.parametrize("kind", KINDS)
def test_values_arrive_whole(gpu: torch.device, delays: int, kind: str) -> None:
    make, tensor_of, prepare = KINDS[kind]
    feed, ahead, seen = DevicePrefetcher(gpu, prepare), deque[Any](), []
    depth, lag = 1 + delays % 3, (0.0, 5e-4)[delays % 2]
    sending, own = torch.accelerator.current_stream(), torch.accelerator.current_stream()
    if delays % 4:
        own = torch.Stream(device=gpu)
    for k in range(8 + depth):
        if k < 8:
            with sending:
                ahead.append(feed.send([make(k), k]))
        if k >= depth:
            with own:
                batch = feed.receive(ahead.popleft())
                simulated.busy(lag)
                seen.append((tensor_of(batch[0]) * 2, batch[1]))
                del batch
    with own:
        values = [(each.unique().tolist(), k) for each, k in seen]
    assert values == [([2 * (k + (prepare is not None))], k) for k in range(8)]


def test_resident_data_lives_until_its_rows_were_taken(gpu: torch.device, delays: int) -> None:
    simulated.configure(delays, DELAY)  # indices are in memory that torch's own allocator locked
    loader = headrace.DataLoader(TensorDataset(torch.arange(20)), batch_size=5, device=gpu, resident=True)
    batches, own = iter(loader), torch.Stream(device=gpu)  # the data belongs to the stream of `iter`
    with own:
        simulated.busy(1e-3)
        taken = [rows.clone() for (rows,) in batches]
        del loader, batches
        assert torch.cat(taken).tolist() == list(range(20))


def test_a_batch_that_nobody_receives_spoils_nothing(gpu: torch.device, delays: int) -> None:
    feed = DevicePrefetcher(gpu, prepare=lambda batch, _: [batch[0].add_(1)])
    feed.send([there(3)])
    feed.close()  # which lets go of it as soon as its copies are over
    others = torch.full((SIZE,), 7, dtype=torch.int32, device=gpu)  # perhaps where the batch was
    torch.accelerator.synchronize()
    assert others.unique().tolist() == [7]


def test_a_closed_feed_reads_no_host_memory(gpu: torch.device, delays: int) -> None:
    feed = DevicePrefetcher(gpu)
    batch = feed.receive(feed.send([host(3)]))
    feed.close()
    del feed
    again = host(4)
    assert batch[0].unique().tolist() == [3]
    assert again[0] == 4


def test_a_feed_in_a_fork_says_what_to_do(gpu: torch.device) -> None:
    torch.ones(1, device=gpu)

    def use() -> None:
        with pytest.raises(ConfigError, match="was forked from one that had used it already"):
            DevicePrefetcher(gpu)

    assert exit_of_fork(use) == 0
