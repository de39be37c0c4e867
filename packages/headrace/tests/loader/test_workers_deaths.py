"""Worker processes that die in the middle of an epoch: nothing is lost, nobody waits for them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, get_worker_info
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.engine.caller_stream import TorchStream
from headrace.engine.progress import Cancelled, Progress
from support.equal import same
from support.unknown import Jitter

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SIZE = 60


class Noisy(Dataset[Any]):
    """Samples that are drawn; some end the process that makes them.

    Args:
        deadly: by index, what they do to it.
        once: a folder, where they leave a file the first time, and do it no more.
    """

    def __init__(self, deadly: dict[int, Callable[[], Any]] | None = None, once: Path | None = None) -> None:
        self.deadly = deadly or {}
        self.once = once
        self.samples = [(f"file-{i}", 0) for i in range(SIZE)]

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if index in self.deadly and get_worker_info() is not None and not self._was_here(index):
            self.deadly[index]()
        return index, torch.rand(3)

    def _was_here(self, index: int) -> bool:
        if self.once is None:
            return False
        place = self.once / str(index)
        if place.exists():
            return True
        place.touch()
        return False


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exits() -> None:
    sys.exit(3)


def interrupted() -> None:
    raise KeyboardInterrupt


def loader_of(dataset: Dataset[Any], **options: Any) -> headrace.DataLoader:
    options = {"batch_size": 4, "num_workers": 2, "worker_kind": "process", "seed": 5, **options}
    return headrace.DataLoader(dataset, **options)


def indices(batches: list[Any]) -> list[int]:
    return [int(index) for batch in batches for index in batch[0]]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_the_epoch_is_what_it_would_have_been(method: str, tmp_path: Path) -> None:
    expected = list(loader_of(Noisy(), shuffle=True))
    dataset = Noisy({0: killed, 33: exits} if method == "fork" else {17: killed}, tmp_path)
    workers = 2 if method == "fork" else 1  # one starts in seconds
    loader = loader_of(dataset, shuffle=True, multiprocessing_context=method, num_workers=workers)
    assert same(list(loader), expected)
    assert len(list(tmp_path.iterdir())) == len(dataset.deadly)
    assert loader.stats().failures == ()


def test_a_death_is_logged_with_its_sample(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "headrace"):
        list(loader_of(Noisy({17: killed}, tmp_path)))
    (record,) = caplog.records
    assert re.search(
        r"worker \(pid \d+\) was killed by SIGKILL, as the kernel does if memory runs out, while making"
        r" sample 17 \(file-17\); the process is replaced",
        record.getMessage(),
    )


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        (killed, "was killed by SIGKILL"),
        (exits, "exited with code 3"),
        (interrupted, "exited with code 130"),
    ],
)
def test_a_sample_that_ends_its_process_twice_is_an_error(ends: Callable[[], None], how: str) -> None:
    iterator = iter(loader_of(Noisy({17: ends})))
    batches = [next(iterator) for _ in range(4)]
    with pytest.raises(headrace.SampleError, match=rf"sample 17 \(file-17\).*twice, which {how}"):
        next(iterator)
    batches += list(iterator)
    assert indices(batches) == [i for i in range(SIZE) if not 16 <= i < 20]


def test_it_is_skipped_or_replaced_where_the_user_says_so(caplog: pytest.LogCaptureFixture) -> None:
    deadly = {17: killed, 18: killed, 40: killed}
    loader = loader_of(Noisy(deadly), on_error="skip")
    assert indices(list(loader)) == [i for i in range(SIZE) if i not in deadly]
    assert [(f.index, f.path, f.action) for f in loader.stats().failures] == [
        (i, f"file-{i}", "skipped") for i in deadly
    ]
    # In the next epoch it is known what they do.
    caplog.clear()
    assert indices(list(loader)) == [i for i in range(SIZE) if i not in deadly]
    assert not caplog.records
    loader = loader_of(Noisy(deadly), on_error="replace")
    replaced = {17: 19, 18: 19, 40: 41}
    assert indices(list(loader)) == [replaced.get(i, i) for i in range(SIZE)]


def active() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


def test_a_stand_in_that_ends_its_process_is_passed_over() -> None:
    class Bad(Noisy):
        def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
            if index == 9:
                raise OSError("damaged")
            return super().__getitem__(index)

    dataset = Bad({10: killed})
    loader = loader_of(dataset, on_error="replace", sampler=[i for i in range(SIZE) if i != 10])
    assert indices(list(loader))[9] == 11


def collate_ends(samples: list[Any]) -> Any:
    if samples[0][0] == 16 and get_worker_info() is not None:
        killed()
    return torch.utils.data.default_collate(samples)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_batch_that_ends_its_process_twice_is_an_error(on_error: str) -> None:
    iterator = iter(loader_of(Noisy(), collate_fn=collate_ends, on_error=on_error))
    batches = [next(iterator) for _ in range(4)]
    with pytest.raises(RuntimeError, match=r"the batch of samples 16, 17, 18, 19 ended.*twice"):
        next(iterator)
    batches += list(iterator)
    assert indices(batches) == [i for i in range(SIZE) if not 16 <= i < 20]


def init_ends(worker: int) -> None:
    os._exit(7 + worker)


def test_workers_that_die_at_their_start_are_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"exited with code [78], while making nothing.*worker_init_fn"):
        list(loader_of(Noisy(), worker_init_fn=init_ends))


class Ends:
    """A step of a transform."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, image: Any) -> Any:
        if image.size == (31, 31) and not (self.folder / "here").exists():
            (self.folder / "here").touch()
            killed()
        return image


def test_samples_that_native_code_begins(folder: Path, tmp_path: Path) -> None:
    def steps(*more: Any) -> transforms.Compose:
        first = [transforms.RandomResizedCrop(31), *more, Jitter(0.4)]
        return transforms.Compose([*first, transforms.ToTensor()])

    expected = list(loader_of(ImageFolder(str(folder), steps(str_of))))
    loader = loader_of(ImageFolder(str(folder), steps(Ends(tmp_path))))
    assert same(list(loader), expected)
    assert (tmp_path / "here").exists()


def str_of(image: Any) -> Any:
    return image


def kill_one(number: int, others: set[int | None]) -> None:
    """Kills one of this process's workers from outside, but none of `others`: loaders of earlier tests may
    have some, and torch raises an error when one of its own dies."""
    workers = sorted(active() - others - {None}, key=int)  # type: ignore[arg-type]
    os.kill(int(workers[number % len(workers)] or 0), signal.SIGKILL)


class Heavy(Noisy):
    """Samples that go through a pipe, a megabyte each, which takes far more than one write."""

    def __getitem__(self, index: int) -> tuple[int, Any]:  # type: ignore[override]
        return index, bytes([index]) * (1 << 20)


def unlabelled(samples: list[Any]) -> Any:
    return torch.tensor([index for index, _ in samples]), [data for _, data in samples]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("heavy", [True, False])
def test_workers_killed_from_outside(in_order: bool, heavy: bool) -> None:
    """In the middle of a sample, of a message, or while they wait: what comes is the same."""
    dataset = Heavy() if heavy else Noisy()
    collate = unlabelled if heavy else None
    loader = loader_of(dataset, in_order=in_order, collate_fn=collate, prefetch_factor=4)
    others = active()
    for epoch in range(3):
        seen: list[int] = []
        for number, batch in enumerate(loader):
            seen += batch[0].tolist()
            if heavy:
                assert [data[0] for data in batch[1]] == batch[0].tolist()
                assert {len(data) for data in batch[1]} == {1 << 20}
            if number == 3 * epoch:  # once an epoch, as a batch that two kills meet is an error
                kill_one(number, others)
        assert sorted(seen) == list(range(SIZE))
        assert not in_order or seen == sorted(seen)


def test_the_training_step_isnt_disturbed() -> None:
    """torch raises an error in whatever the main thread is at when a worker dies."""
    loader = loader_of(Noisy())
    seen, others = [], active()
    for batch in loader:
        seen.append(batch)
        if len(seen) == 2:
            before = active()
            kill_one(0, others)
            while active() == before:
                time.sleep(0.01)
    assert indices(seen) == list(range(SIZE))


def test_workers_killed_between_epochs() -> None:
    loader = loader_of(Noisy(), persistent_workers=True)
    others = active()
    for _ in range(3):
        assert indices(list(loader)) == list(range(SIZE))
        kill_one(0, others)


def test_an_epoch_asked_for_in_another_thread() -> None:
    """Signals reach the main thread only; deaths are seen without them."""
    loader, seen = loader_of(Heavy(), collate_fn=unlabelled), []
    others = active()

    def use() -> None:
        for number, batch in enumerate(loader):
            seen.append(batch)
            if number in (2, 9):
                kill_one(number, others)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    assert indices(seen) == list(range(SIZE))


def sleeps() -> None:
    time.sleep(600)


def test_a_worker_that_does_nothing_is_named_by_the_timeout() -> None:
    loader = loader_of(Noisy({17: sleeps}), timeout=1)
    with pytest.raises(
        RuntimeError, match=r"timed out after 1 seconds: .*worker \(pid \d+\) is making sample 17"
    ):
        list(loader)


def waits_for_a_file(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def test_a_batch_that_timed_out_still_comes_and_counts_once(tmp_path: Path) -> None:
    def loader() -> headrace.DataLoader:
        return loader_of(Noisy({9: partial(waits_for_a_file, tmp_path / "free")}), timeout=1)

    first = loader()
    batches = iter(first)
    given = [next(batches), next(batches)]
    with pytest.raises(RuntimeError, match="timed out"):
        next(batches)
    (tmp_path / "free").touch()
    given += [next(batches), next(batches)]
    state = first.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert same(given + list(resumed), list(loader()))


class Broken:
    """torch's iterator, as it is where a worker has died: it continues without the worker."""

    def __init__(self, exitcode: int | None, *errors: Exception) -> None:
        self._workers = [SimpleNamespace(exitcode=exitcode)]
        self.errors = list(errors)

    def __iter__(self) -> Broken:
        return self

    def __next__(self) -> int:
        if not self.errors:
            raise StopIteration
        raise self.errors.pop(0)


def test_a_stream_of_torchs_loader_doesnt_end_as_if_that_had_been_all() -> None:
    # A real worker's end reaches the main thread as a signal; torch makes it an error here, or in pytest.
    stream = TorchStream(Broken(-signal.SIGKILL, ConnectionResetError(104, "Connection reset by peer")))
    for _ in range(3):
        with pytest.raises(ConnectionResetError):
            next(stream)


@pytest.mark.parametrize("exitcode", [None, 0])
def test_a_stream_of_torchs_loader_continues_after_an_error_of_its_code(exitcode: int | None) -> None:
    stream = TorchStream(Broken(exitcode, ConnectionError("Caught"), KeyError(3)))
    with pytest.raises(ConnectionError, match="Caught"):
        next(stream)
    with pytest.raises(KeyError, match="3"):
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)


def test_a_request_that_is_not_wanted_ends_after_the_sample_that_is_being_made() -> None:
    progress = Progress(1)
    cell = progress[0]
    cell.start(7)
    indices = cell.each([3, 4, 5])
    assert next(indices) == 3
    progress[0].want_from(8)
    with pytest.raises(Cancelled):
        next(indices)
    assert not cell.wanted(7)
    assert cell.wanted(8)
