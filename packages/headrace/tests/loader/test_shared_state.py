"""Datasets that keep state outside themselves, as ordinary ones do: no sample may see another one's."""

from __future__ import annotations

import asyncio
import io
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import headrace

SAMPLES, MANY_SAMPLES = 600, 100_000
RECORD = 8
# Long enough for another thread to come between the two halves of a sample.
PAUSE_SECONDS = 0.0003

open_file: io.BufferedReader | None = None
scratch = np.zeros(RECORD, np.int64)
event_loop: asyncio.AbstractEventLoop | None = None
shared_random = random.Random(7)


class Samples(Dataset[Any]):
    """Sample i is made from i alone.

    Args:
        size: number of samples.
        path: of a file in which record i is i, as 8 bytes.
    """

    def __init__(self, size: int, path: Path) -> None:
        self.size = size
        self.path = path

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError

    def expected(self, index: int) -> float:
        """The value of sample `index`."""
        return index


class FileInModule(Samples):
    def __getitem__(self, index: int) -> int:
        global open_file
        if open_file is None:
            open_file = self.path.open("rb")
        open_file.seek(index * RECORD)
        time.sleep(PAUSE_SECONDS)
        return int.from_bytes(open_file.read(RECORD), "little")


class FileInClass(Samples):
    file: ClassVar[io.BufferedReader | None] = None

    def __getitem__(self, index: int) -> int:
        if FileInClass.file is None:
            FileInClass.file = self.path.open("rb")
        FileInClass.file.seek(index * RECORD)
        time.sleep(PAUSE_SECONDS)
        return int.from_bytes(FileInClass.file.read(RECORD), "little")


class ScratchInModule(Samples):
    def __getitem__(self, index: int) -> Any:
        scratch[:] = index
        time.sleep(PAUSE_SECONDS)
        return int(scratch[-1])


class Shift:
    """A transform that keeps what it has drawn, as many do for a second image or a mask."""

    def __call__(self, value: int) -> int:
        self.by = 3 * value
        time.sleep(PAUSE_SECONDS)
        return value + self.by


shift = Shift()


class TransformInModule(Samples):
    def __getitem__(self, index: int) -> int:
        return shift(index)

    def expected(self, index: int) -> float:
        return 4 * index


class Cell:
    """An object whose state no __dict__ shows."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class StateInSlots(Samples):
    def __init__(self, size: int, path: Path) -> None:
        super().__init__(size, path)
        self.cell = Cell()

    def __getitem__(self, index: int) -> int:
        self.cell.value = index
        time.sleep(PAUSE_SECONDS)
        return self.cell.value


class SeedsTorch(Samples):
    def __getitem__(self, index: int) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(index)
            time.sleep(PAUSE_SECONDS)
            return torch.rand(()).item()

    def expected(self, index: int) -> float:
        return torch.rand((), generator=torch.Generator().manual_seed(index)).item()


class SetsRandomState(Samples):
    def __getitem__(self, index: int) -> float:
        before = random.getstate()
        random.seed(index)
        time.sleep(PAUSE_SECONDS)
        value = random.random()
        random.setstate(before)
        return value

    def expected(self, index: int) -> float:
        return random.Random(index).random()


class SetsAndPutsBack(Samples):
    def __init__(self, size: int, path: Path) -> None:
        super().__init__(size, path)
        self.current: int | None = None

    def __getitem__(self, index: int) -> int:
        self.current = index
        time.sleep(PAUSE_SECONDS)
        value = self.current + 0
        self.current = None
        return value


def too_late(number: int, frame: Any) -> None:
    raise TimeoutError


class TimesOut(Samples):
    def __getitem__(self, index: int) -> int:
        signal.signal(signal.SIGALRM, too_late)
        signal.setitimer(signal.ITIMER_REAL, 60)
        time.sleep(PAUSE_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return index


async def fetched(index: int) -> int:
    await asyncio.sleep(PAUSE_SECONDS)
    return index


class RunsAnEventLoop(Samples):
    def __getitem__(self, index: int) -> int:
        global event_loop
        if event_loop is None:
            event_loop = asyncio.new_event_loop()
            asyncio.set_event_loop(event_loop)
        return asyncio.get_event_loop().run_until_complete(fetched(index))


DATASETS = [
    FileInModule,
    FileInClass,
    ScratchInModule,
    TransformInModule,
    StateInSlots,
    SeedsTorch,
    SetsRandomState,
    SetsAndPutsBack,
    TimesOut,
    RunsAnEventLoop,
]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "records"
    path.write_bytes(np.arange(MANY_SAMPLES, dtype="<u8").tobytes())
    return path


def wrong_samples(dataset: Samples, **arguments: Any) -> int:
    """The number of samples of an epoch in order that aren't what they should be."""
    loader = headrace.DataLoader(dataset, batch_size=50, **arguments)
    received = [value for batch in loader for value in batch.tolist()]
    assert len(received) == len(dataset)
    return sum(value != dataset.expected(index) for index, value in enumerate(received))


@pytest.mark.parametrize(
    ("workers", "samples"),
    [
        (2, SAMPLES),
        *(
            pytest.param(workers, MANY_SAMPLES, marks=[pytest.mark.long, pytest.mark.timeout(1200)])
            for workers in (2, 4)
        ),
    ],
)
@pytest.mark.parametrize("kind", DATASETS)
def test_no_sample_sees_another_ones_state(
    kind: type[Samples], workers: int, samples: int, records: Path
) -> None:
    assert wrong_samples(kind(samples, records), num_workers=workers) == 0


def test_by_default_no_sample_sees_another_ones_state(records: Path) -> None:
    assert wrong_samples(ScratchInModule(SAMPLES, records)) == 0


def test_threads_that_were_asked_for_share_the_state_of_a_module(records: Path) -> None:
    """Threads give the wrong samples that docs/workers.md warns of: these datasets can tell."""
    assert wrong_samples(ScratchInModule(SAMPLES, records), num_workers=4, worker_kind="thread") > 0


class DrawsLater(Samples):
    augment = False

    def __getitem__(self, index: int) -> float:
        time.sleep(PAUSE_SECONDS)
        return random.random() if self.augment else 0.0


class DrawsNowAndThen(Samples):
    augment = False

    def __getitem__(self, index: int) -> float:
        time.sleep(PAUSE_SECONDS)
        return torch.rand(()).item() + np.random.rand() if index % 50 == 49 else 0.0


class DrawsFromAModule(Samples):
    augment = False

    def __getitem__(self, index: int) -> float:
        time.sleep(PAUSE_SECONDS)
        return shared_random.random()


def two_epochs(dataset: Any) -> Iterator[float]:
    loader = headrace.DataLoader(dataset, batch_size=10, shuffle=True, num_workers=2, seed=3)
    for augment in (False, True):
        dataset.augment = augment
        for batch in loader:
            yield from batch.tolist()


@pytest.mark.parametrize("kind", [DrawsLater, DrawsNowAndThen, DrawsFromAModule])
def test_random_draws_repeat_with_the_seed(kind: Callable[..., Any], records: Path) -> None:
    first = list(two_epochs(kind(200, records)))
    assert len(set(first)) > 2
    assert list(two_epochs(kind(200, records))) == first
