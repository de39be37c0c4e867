"""Loaders with a device give what they give without, however late it is and whatever the consumer does."""

from __future__ import annotations

import gc
import multiprocessing.heap
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from device.test_loader_gpu import MAKERS, Squares

import headrace
from accelerator import module as simulated
from support.datasets import Stream
from support.processes import exit_of_fork

pytestmark = pytest.mark.gpu
SEEDS = range(int(os.environ.get("HEADRACE_SEEDS", "20")))
BAD = 7  # the sample that fails where one does
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("native", {}),
    "threads": ("own", {"worker_kind": "thread"}),
    "processes": ("own", {"worker_kind": "process"}),
    "caller": ("own", {"num_workers": 0}),
    "gathered": ("gray", {"resident": False}),
    "resident": ("gray", {"resident": True}),
    "transformed": ("tensors", {"batch_transform": lambda images, labels: (images * 2, labels + 1)}),
    "stream": ("stream", {"shuffle": None, "num_workers": 0}),
    "stream of processes": ("stream", {"shuffle": None}),
}
Batches = list[list[torch.Tensor]]


class Own(Squares):
    """A dataset of the user's own, one of whose samples may fail."""

    bad = -1

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.bad:
            raise ValueError(f"sample {index}")
        return super().__getitem__(index)


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    makers = {**MAKERS, "own": lambda _: Own(), "stream": lambda _: Stream(37)}
    return {kind: makers[maker](tmp_path_factory.mktemp("data")) for kind, (maker, _) in KINDS.items()}


@pytest.fixture(scope="module")
def expected(datasets: dict[str, Any]) -> dict[str, Batches]:
    """The batches of two epochs, by kind, made without a device."""

    def batches_of(kind: str) -> Batches:
        loader = loader_of(kind, datasets, None)
        return [*map(tensors_of, loader), *map(tensors_of, loader)]

    return {kind: batches_of(kind) for kind in KINDS}


def loader_of(kind: str, datasets: dict[str, Any], device: torch.device | None) -> headrace.DataLoader:
    options = {"shuffle": True, "seed": 3, "num_workers": 2, **KINDS[kind][1]}
    if device is None:
        options.pop("resident", None)
    return headrace.DataLoader(datasets[kind], batch_size=5, device=device, **options)


def tensors_of(batch: Any) -> list[torch.Tensor]:
    values = (
        batch.values() if isinstance(batch, dict) else [batch] if isinstance(batch, torch.Tensor) else batch
    )
    return [value for value in values if isinstance(value, torch.Tensor)]


class Consumer:
    """Uses batches on one stream or several, late, and drops them at once, or leaves them to the garbage
    collector, which another thread calls."""

    def __init__(self, draw: random.Random, device: torch.device) -> None:
        own = [torch.Stream(device=device) for _ in range(2)]
        self._streams = draw.choice([[torch.accelerator.current_stream(device)], own[:1], own])
        self.draw = draw
        self._lag, self._pause = draw.choice([0, 5e-4]), draw.choice([0, 1e-3])
        self._leaves_garbage = draw.random() < 0.2
        self.seen: Batches = []

    def take(self, batches: Iterator[Any], at_most: int = 100) -> None:
        for _ in range(at_most):
            with self.draw.choice(self._streams):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                simulated.busy(self._lag)
                self.seen.append([tensor.clone() for tensor in tensors_of(batch)])
                if self._leaves_garbage:
                    cycle = [batch]
                    cycle.append(cycle)
                    del cycle
                del batch
            time.sleep(self._pause)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """The other thread."""
        over = threading.Event()

        def collect() -> None:
            while not over.wait(2e-3):
                gc.collect()

        thread = threading.Thread(target=collect)
        if self._leaves_garbage:
            thread.start()
        try:
            yield
        finally:
            over.set()
            if self._leaves_garbage:
                thread.join()

    def check(self, expected: Batches) -> None:
        torch.accelerator.synchronize()
        torch.accelerator.synchronize(1)
        assert len(self.seen) == len(expected)
        for ours, theirs in zip(self.seen, expected, strict=True):
            assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


# What is done with a loader, and the batches that are then expected. `failing` are those with the bad sample.
Course = Callable[[headrace.DataLoader, Consumer, Batches, list[int]], Batches]


def whole(loader: headrace.DataLoader, consumer: Consumer, expected: Batches, _: list[int]) -> Batches:
    for _epoch in range(2):
        consumer.take(iter(loader))
    return expected


def given_up(loader: headrace.DataLoader, consumer: Consumer, expected: Batches, _: list[int]) -> Batches:
    """The first epoch ends early; what was sent ahead is dropped while its copies run."""
    first = iter(loader)
    consumer.take(first, 3)
    del first
    gc.collect()
    loader.set_epoch(0)
    return expected[:3] + whole(loader, consumer, expected, [])


def closed(loader: headrace.DataLoader, consumer: Consumer, expected: Batches, _: list[int]) -> Batches:
    first = iter(loader)
    consumer.take(first, 3)
    first.close()  # type: ignore[attr-defined]
    loader.set_epoch(0)
    return expected[:3] + whole(loader, consumer, expected, [])


def resumed(loader: headrace.DataLoader, consumer: Consumer, expected: Batches, _: list[int]) -> Batches:
    batches = iter(loader)
    consumer.take(batches, 3)
    state = loader.state_dict()
    del batches
    loader.load_state_dict(state)
    return whole(loader, consumer, expected, [])


def step_raises(loader: headrace.DataLoader, consumer: Consumer, expected: Batches, _: list[int]) -> Batches:
    """The traceback keeps the iterator and a batch until the end."""

    def train() -> None:
        batches = iter(loader)
        consumer.take(batches, 3)
        batch = next(batches)
        raise ArithmeticError(len(batch))

    with pytest.raises(ArithmeticError) as caught:
        train()
    loader.set_epoch(0)
    whole(loader, consumer, expected, [])
    del caught
    return expected[:3] + expected


def interrupted(loader: headrace.DataLoader, consumer: Consumer, expected: Batches, _: list[int]) -> Batches:
    """Ctrl-C at any time, except within the allocator of multiprocessing's shared memory: an exception there
    may leave its lists damaged for the rest of the process."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        within = {frame.f_code.co_filename for frame, _ in traceback.walk_stack(frame)}
        if multiprocessing.heap.__file__ in within:
            signal.setitimer(signal.ITIMER_REAL, 1e-4)
        else:
            raise KeyboardInterrupt

    ignored, before = sys.unraisablehook, signal.signal(signal.SIGALRM, interrupt)
    # In a finalizer it does nothing else; in socket.socketpair() it leaves sockets open.
    lost = (KeyboardInterrupt, ResourceWarning)
    sys.unraisablehook = lambda args: None if args.exc_type in lost else ignored(args)
    try:
        signal.setitimer(signal.ITIMER_REAL, consumer.draw.uniform(1e-4, 2e-2))
        consumer.take(iter(loader))
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = ignored
    count = len(consumer.seen)
    loader.set_epoch(0)
    return expected[:count] + whole(loader, consumer, expected, [])


def forked(loader: headrace.DataLoader, consumer: Consumer, expected: Batches, _: list[int]) -> Batches:
    """A fork in the middle of the epoch drops all that it has of it."""
    batches: Any = iter(loader)
    consumer.take(batches, 3)

    def drop() -> None:
        nonlocal batches
        del batches
        gc.collect()

    assert exit_of_fork(drop) == 0
    consumer.take(batches)
    consumer.take(iter(loader))
    return expected


def sample_fails(
    loader: headrace.DataLoader, consumer: Consumer, expected: Batches, failing: list[int]
) -> Batches:
    """The batch of the bad sample is an error, and all others come."""
    errors = 0
    with spoiled(loader.dataset) as spoils:
        for _ in range(2):
            batches = iter(loader)
            for _ in range(2):
                try:
                    consumer.take(batches)
                except (ValueError, OSError):
                    errors += 1
    assert errors == (2 if spoils else 0)
    return [batch for k, batch in enumerate(expected) if not (spoils and k in failing)]


@contextmanager
def spoiled(dataset: Any) -> Iterator[bool]:
    """Lets the bad sample fail; False if the dataset has none that can."""
    path = Path(dataset.samples[BAD][0]) if hasattr(dataset, "samples") else None
    image = b"" if path is None else path.read_bytes()
    try:
        if path is not None:
            path.write_bytes(image[: len(image) // 2])
        elif isinstance(dataset, Own):
            dataset.bad = BAD
        yield path is not None or isinstance(dataset, Own)
    finally:
        if path is not None:
            path.write_bytes(image)
        elif isinstance(dataset, Own):
            dataset.bad = -1


COURSES: list[Course] = [
    whole,
    given_up,
    closed,
    resumed,
    step_raises,
    interrupted,
    forked,
    sample_fails,
]


@pytest.mark.filterwarnings("ignore:Stream had no state_dict")
@pytest.mark.parametrize("seed", SEEDS)
def test_batches_are_those_of_the_cpu(
    gpu: torch.device, seed: int, datasets: dict[str, Any], expected: dict[str, Batches]
) -> None:
    draw = random.Random(seed)
    kind, course = list(KINDS)[seed % len(KINDS)], COURSES[seed % len(COURSES)]
    device = torch.device(gpu.type, draw.randrange(2))
    consumer = Consumer(draw, device)
    failing = [k for k, (images, *_) in enumerate(expected["caller"]) if (images == BAD / 2).any()]
    simulated.configure(seed, 2e-4)
    with consumer.collecting():
        wanted = course(loader_of(kind, datasets, device), consumer, expected[kind], failing)
    consumer.check(wanted)
