"""Each rule of docs/hazards.md: without the line that keeps it, one of these tests fails (hazards.py).

Consumers lag far behind Python and drop each batch at once. Page-locked memory is as others have locked it,
written again as soon as it is free.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset
from torchvision import transforms as v1

import headrace
from accelerator import module as simulated
from headrace.device.prefetcher import DevicePrefetcher
from headrace.errors import ConfigError
from headrace.records import BatchKeys
from support.array_datasets import mnist
from support.datasets import Made
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
    depth, lag = 1 + delays % 3, (0.0, 2e-3)[delays % 2]
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


class Unmovable(Recorded):
    """Fails to move."""

    def to(self, device: Any, non_blocking: bool = False) -> Any:  # noqa: ARG002
        raise ValueError("can't be moved")


class UnmovableLate(Opaque):
    to = Unmovable.to


@pytest.mark.parametrize("kind", ["sent", "received"])
def test_a_batch_that_fails_keeps_what_is_being_copied(gpu: torch.device, kind: str) -> None:
    simulated.configure(copy_bytes_per_second=5e4, forgetful=True)  # a third of a second
    for _ in range(20):  # on a busy machine, the copy may be over before it is looked at
        start = time.monotonic()
        feed, tensor = DevicePrefetcher(gpu), host(3)
        address = tensor.data_ptr()
        batch = [tensor, Unmovable(host(0))] if kind == "sent" else [Opaque(tensor), UnmovableLate(host(0))]
        with pytest.raises(ValueError, match="can't be moved"):
            feed.receive(feed.send(batch))
        del tensor, batch
        gc.collect()
        time.sleep(0.02)
        copied = feed.copy_seconds  # asking for it lets go of copies that are over
        others = [host(4) for _ in range(3)]
        reused, seconds = address in [other.data_ptr() for other in others], time.monotonic() - start
        feed.close()
        if seconds < 0.3:
            break
    assert seconds < 0.3
    assert copied < 0.1
    assert not reused


def test_a_batch_that_fails_is_an_error_in_its_place(gpu: torch.device) -> None:
    """It is sent ahead, while others are asked for."""
    made = Made(lambda index: Unmovable(torch.ones(1)) if index == 3 else torch.tensor([index]), 6)
    loader = headrace.DataLoader(made, batch_size=None, device=gpu, num_workers=1, worker_kind="thread")
    batches, seen = iter(loader), []
    time.sleep(0.05)  # all of them are ready
    for _ in range(6):
        try:
            seen.append(int(next(batches)))
        except ValueError:
            seen.append(-1)
    assert seen == [0, 1, 2, -1, 4, 5]


def test_copies_to_the_cpu_are_waited_for(delays: int) -> None:
    feed = DevicePrefetcher("cpu")
    here = [feed.receive(feed.send([there(k)]))[0].unique().tolist() for k in range(8)]
    assert here == [[k] for k in range(8)]


def test_a_table_of_values_lives_until_it_was_read(gpu: torch.device, delays: int) -> None:
    simulated.configure(delays, DELAY)
    loader = headrace.DataLoader(gray(5), device=gpu, resident=True)
    batches, own, made = iter(loader), torch.Stream(device=gpu), []
    made.append(next(batches)[0])  # makes the table, for the stream of the first batch
    with own:
        simulated.busy(1e-3)
        made += [images for images, _ in batches]
        del loader, batches
        values = [images.unique().tolist() for images in made]
    assert values == [[0.5]] * 5


def gray(count: int) -> Any:
    """So many images without contrast."""
    half = v1.Normalize([128 / 255 - 0.5], [1.0])
    return mnist(torch.full((count, 28, 28), 128, dtype=torch.uint8), v1.Compose([v1.ToTensor(), half]))


def test_a_feed_dropped_in_a_fork_waits_for_nothing(gpu: torch.device) -> None:
    feed = DevicePrefetcher(gpu)
    with feed._stream:  # type: ignore[union-attr]
        simulated.busy(0.2)
    feed.send([host(3)])

    def close() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        feed.close()

    assert exit_of_fork(close) == 0


def test_a_feed_in_a_fork_says_what_to_do(gpu: torch.device) -> None:
    torch.ones(1, device=gpu)

    def use() -> None:
        with pytest.raises(
            ConfigError, match=r"was forked from one that had used it already\. Start it by spawn"
        ):
            DevicePrefetcher(gpu)

    assert exit_of_fork(use) == 0
