"""The sampler beside real loaders: what takes the time is named, and nothing is changed."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torch.utils.data import Sampler as OrderOfSamples

from headrace_doctor.measure import sampler as module
from headrace_doctor.measure.hooks import intercepted
from headrace_doctor.measure.sampler import (
    Sampler,
    TimedDataset,
    announce_phase,
    begin_sampled,
    read_counts,
    state_of,
)
from headrace_doctor.measure.stages import Stage
from support.timed_datasets import (
    SAMPLES,
    Computes,
    Decodes,
    Kills,
    Numbers,
    Parses,
    Reads,
    Refuses,
    SlowNumber,
    Stream,
    Together,
    Transforms,
    compute,
    heavy_collate,
)


@contextmanager
def sampled(folder: Path) -> Iterator[Callable[[str], None]]:
    """Samples this process and the workers of its loaders."""
    with module.sampled(folder) as announce, intercepted(partial(begin_sampled, folder)):
        yield announce


COMPUTE = f"compute (timed_datasets.py:{compute.__code__.co_firstlineno})"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder into which this process and its workers are sampled, in the phase "supply"."""
    with sampled(tmp_path) as announce:
        announce("supply")
        yield tmp_path


def counts_of(folder: Path, role: str) -> list[dict[str, Any]]:
    return [line for line in read_counts(folder) if line["role"] == role]


def made(counts: list[dict[str, Any]]) -> int:
    """Samples that were timed."""
    return sum(count for line in counts for _, count in line["samples"]["bins"])


@contextmanager
def running(folder: Path) -> Iterator[Sampler]:
    sampler = Sampler(folder, "main")
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def costliest(counts: list[dict[str, Any]]) -> str:
    """The stage in which most of the seconds were spent that samples and batches took."""
    seconds: dict[str, float] = {}
    for line in counts:
        for key, row in line["stages"].get("fetch", {}).items():
            if key not in ("idle", "start"):
                seconds[key] = seconds.get(key, 0.0) + row[2]
    return max(seconds, key=lambda key: seconds[key])


def waiting(counts: list[dict[str, Any]], stage: str) -> float:
    rows = [line["stages"]["fetch"][stage] for line in counts if stage in line["stages"].get("fetch", {})]
    return sum(row[3] for row in rows) / sum(row[2] for row in rows)


def epochs(
    folder: Path, loader: Callable[[], DataLoader[Any]]
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Reads epochs, 12 at most, until the sampler has looked 40 times, and yields the counts of this process
    and of its workers in each. On a busy machine one epoch may be over after a few looks."""
    looks = 0
    for number in range(12):
        (of_epoch := folder / str(number)).mkdir()
        with sampled(of_epoch) as announce:
            announce("supply")
            list(loader())
        main, in_workers = counts_of(of_epoch, "main"), counts_of(of_epoch, "worker")
        yield main, in_workers
        looks += sum(line["rounds"] for line in in_workers or main)
        if looks >= 40:
            return


@pytest.mark.parametrize(
    ("dataset", "collate", "stage"),
    [
        (Reads(), None, "read"),
        (Decodes(), None, "decode"),
        (Transforms(), None, "transform:Heavy"),
        (Numbers(), heavy_collate, "collate"),
        (Computes(), None, f"dataset:{COMPUTE}"),
    ],
    ids=["read", "decode", "transform", "collate", "dataset"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_names_what_takes_the_time(
    tmp_path: Path, workers: int, dataset: Dataset[Any], collate: Any, stage: str
) -> None:
    context = "fork" if workers else None
    counts: list[dict[str, Any]] = []
    options: Any = {"num_workers": workers, "collate_fn": collate, "multiprocessing_context": context}
    for main, in_workers in epochs(tmp_path, lambda: DataLoader(dataset, 4, **options)):
        added = in_workers if workers else main
        assert len({line["pid"] for line in added}) == max(1, workers)
        assert made(added) == SAMPLES
        counts += added
    # Nor do shares of the time say much there: only which is the largest.
    assert costliest(counts) == stage, [line["stages"] for line in counts]
    # However long a thread waits for a core: none is blocked but by what it reads.
    assert (waiting(counts, stage) > 0) == (stage == "read")
    if workers:
        (supply,) = (line for line in main if line["phase"] == "supply")
        assert supply["stages"]["wait"]["wait"][2] > 0.1 * supply["seconds"]


class Lists(Dataset[list[list[float]]]):
    rows = [[0.5] * 50] * 300

    def __len__(self) -> int:
        return 1600

    def __getitem__(self, index: int) -> list[list[float]]:
        return self.rows


def test_a_call_that_holds_the_gil_is_not_taken_for_the_idle_time_after_it(tmp_path: Path) -> None:
    spent = multiprocessing.Value("d")

    def collate(rows: Any) -> torch.Tensor:
        began = time.perf_counter()
        batch = torch.tensor(rows)
        spent.value += time.perf_counter() - began
        return batch

    with sampled(tmp_path) as announce:
        announce("supply")
        context = multiprocessing.get_context("fork")
        list(DataLoader(Lists(), 32, num_workers=1, collate_fn=collate, multiprocessing_context=context))
    (supply,) = (line for line in counts_of(tmp_path, "worker") if line["phase"] == "supply")
    seconds = {key: row[2] for key, row in supply["stages"]["fetch"].items()}
    assert seconds["collate"] > 0.7 * spent.value, (seconds, spent.value)


@pytest.mark.parametrize(
    ("ran", "held", "idle"),
    [(0.5, 0.0, 0.0), (0.1, 0.4, 0.0), (0.0, 0.01, 0.5)],
    ids=["ran", "waited for a core", "was idle"],
)
def test_a_late_look_at_an_idle_thread_counts_what_it_did_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: float, held: float, idle: float
) -> None:
    looks = [((0.0, 0.0), Stage("fetch", "collate", False)), ((ran, held), Stage("fetch", "idle", True))]
    sampler = Sampler(tmp_path, "worker")
    sampler._begin("supply")
    for row, stage in looks:
        monkeypatch.setattr(module, "thread_times", lambda threads, row=row: dict.fromkeys(threads, row))
        monkeypatch.setattr(module, "stage_of", lambda *_, stage=stage: (stage, ""))
        sampler._look({threading.get_ident(): ()}, seconds=0.5, late=0.4)
    seconds = {key: row[2] for key, row in sampler._counts.shared_out()["fetch"].items()}
    assert seconds == {"collate": 1.0 - idle, **({"idle": idle} if idle else {})}


class Sums(Dataset[torch.Tensor]):
    """Each operator lets go of the GIL, for a moment."""

    def __len__(self) -> int:
        return 19_200

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(20) * (index + 1)) % 1000


class SortsForEachBatch(OrderOfSamples[list[int]]):
    """Holds the GIL for as long as it sorts."""

    spent = 0.0

    def __iter__(self) -> Iterator[list[int]]:
        numbers = np.random.default_rng(0).permutation(20_000).tolist()
        for first in range(0, 19_200, 96):
            began = time.perf_counter()
            sorted(numbers, key=lambda one: -one)
            self.spent += time.perf_counter() - began
            yield list(range(first, first + 96))


def test_a_call_that_holds_the_gil_is_not_taken_for_what_lets_go_of_it_later(tmp_path: Path) -> None:
    batches = SortsForEachBatch()
    with sampled(tmp_path) as announce:
        announce("supply")
        list(DataLoader(Sums(), batch_sampler=batches))
    (supply,) = (line for line in counts_of(tmp_path, "main") if line["phase"] == "supply")
    stages = [stages for rows in supply["stages"].values() for stages in rows.items()]
    seconds = sum(row[2] for key, row in stages if key.startswith("sampler:"))
    assert seconds > 0.6 * batches.spent, (seconds, batches.spent, supply["stages"])


class MakesTensors(IterableDataset[torch.Tensor]):
    """Each torch.tensor() lets go of the GIL, for a moment."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for number in range(6400):
            yield torch.tensor([float(str(number + k)) for k in range(400)])


def test_a_short_collation_is_not_taken_for_the_stream_that_makes_tensors(tmp_path: Path) -> None:
    # The worker's counts were missing once, on a busy machine: torch kills workers that take 5 s to end.
    for _ in range(3):
        with sampled(tmp_path) as announce:
            announce("supply")
            list(DataLoader(MakesTensors(), 64, num_workers=1, multiprocessing_context="fork"))
        if counts_of(tmp_path, "worker"):
            break
    assert costliest(counts_of(tmp_path, "worker")).startswith("dataset:__iter__ (test_sampler.py:")


class Arrays(Dataset[Any]):
    def __len__(self) -> int:
        return 4800

    def __getitem__(self, index: int) -> Any:
        return np.zeros((60, 51), np.float32)


def collate_number_by_number(samples: list[Any]) -> torch.Tensor:
    """Holds the GIL for as long as it makes the tensor of a batch, of which little is sent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.tensor(samples)[:8].clone()


def test_a_thread_that_waits_for_the_gil_is_not_taken_to_send(tmp_path: Path) -> None:
    with sampled(tmp_path) as announce:
        announce("supply")
        list(DataLoader(Arrays(), 96, num_workers=1, collate_fn=collate_number_by_number))
    seconds = {"collate": 0.0, "send": 0.0}
    for line in counts_of(tmp_path, "worker"):
        for stages in line["stages"].values():
            for stage in seconds.keys() & stages.keys():
                seconds[stage] += stages[stage][2]
    assert seconds["send"] < seconds["collate"]


def collate_slowly(samples: list[int]) -> torch.Tensor:
    compute(0.005)
    return torch.tensor(samples)


def test_looks_at_a_generator_in_python_are_attributed_to_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow_state_of(native_id: int) -> str:
        time.sleep(0.002)  # other threads run meanwhile: the generator gives its value
        return state_of(native_id)

    monkeypatch.setattr(module, "state_of", slow_state_of)
    loader = DataLoader(
        Parses(), SAMPLES, num_workers=1, collate_fn=collate_slowly, multiprocessing_context="fork"
    )
    with sampled(tmp_path) as announce:
        announce("supply")
        list(loader)
    (line,) = counts_of(tmp_path, "worker")
    first = Parses.__iter__.__code__.co_firstlineno
    assert f"dataset:__iter__ (timed_datasets.py:{first})" in line["stages"]["fetch"]
    assert [key for key in line["stages"].get("step", {}) if "timed_datasets.py" in key] == []


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.long), "forkserver"])
def test_follows_workers_however_they_start(tmp_path: Path, method: str) -> None:
    counts = []
    for _, in_workers in epochs(
        tmp_path, lambda: DataLoader(Reads(), 4, num_workers=1, multiprocessing_context=method)
    ):
        assert made(in_workers) == SAMPLES
        assert len(in_workers) == 1
        counts += in_workers
    assert costliest(counts) == "read"


def test_persistent_workers_follow_the_phases(folder: Path) -> None:
    before = set(multiprocessing.active_children())
    loader = DataLoader(Computes(), 4, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    for phase in ("actual", "supply"):
        announce_phase(folder, phase)
        assert len(list(loader)) == SAMPLES // 4
    (worker,) = set(multiprocessing.active_children()) - before
    del loader  # ends its worker, but later where the sampler looks at a frame of the iterator just then
    worker.join()
    counts = {line["phase"]: line for line in counts_of(folder, "worker")}
    assert counts.keys() == {"actual", "supply"}
    # A phase ends at a look: some samples are counted with their neighbours'.
    assert made([counts["actual"], counts["supply"]]) == 2 * SAMPLES
    assert made([counts["supply"]]) > 0


def test_slow_samples_are_known_by_index(folder: Path) -> None:
    list(DataLoader(SlowNumber(), 4, num_workers=1, multiprocessing_context="fork"))
    samples = counts_of(folder, "worker")[0]["samples"]
    assert samples["slowest"][0][1] == 5
    assert samples["slowest"][0][0] >= 0.1
    assert sum(count for _, count in samples["bins"]) == SAMPLES


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize(
    "dataset", [Numbers(), Together(), Refuses(), Stream()], ids=lambda d: type(d).__name__
)
def test_batches_are_the_same(
    tmp_path: Path, dataset: Dataset[Any], batch_size: int | None, workers: int
) -> None:
    def batches() -> list[Any]:
        return list(DataLoader(dataset, batch_size, num_workers=workers, multiprocessing_context=context))

    context = "fork" if workers else None
    plain = batches()
    with sampled(tmp_path) as announce:
        announce("supply")
        timed = batches()
    assert len(timed) == len(plain)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(timed, plain, strict=True))
    counts = counts_of(tmp_path, "worker" if workers else "main")
    together = isinstance(dataset, Together) and batch_size  # by one call, none of them alone
    assert made(counts) == (0 if together else 10 if isinstance(dataset, IterableDataset) else SAMPLES)


class Starts(Numbers):
    start = 0

    def __getitem__(self, index: int) -> int:
        return self.start + index


def _set_start(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, Starts)
    info.dataset.start = 100


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_worker_init_fn_still_changes_the_workers_dataset(folder: Path, method: str) -> None:
    loader = DataLoader(
        Starts(), None, num_workers=1, worker_init_fn=_set_start, multiprocessing_context=method
    )
    assert next(iter(loader)) == 100
    assert type(loader.dataset) is Starts
    assert loader.worker_init_fn is _set_start


def _bind(_: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
@pytest.mark.parametrize("init", [None, _bind])
def test_the_cores_of_workers_are_known_and_what_binds_them(
    folder: Path, init: Callable[[int], None] | None
) -> None:
    list(DataLoader(Numbers(), None, num_workers=1, worker_init_fn=init))
    counts = counts_of(folder, "worker")[-1]
    cores = sorted(os.sched_getaffinity(0))
    assert counts["cores"] == (cores if init is None else cores[:1])
    assert counts["bound_by"] == ("" if init is None else "worker_init_fn=_bind")


def test_a_timed_dataset_is_like_the_dataset_itself() -> None:
    timed = TimedDataset(Starts())
    assert isinstance(timed, Starts)
    assert len(timed) == SAMPLES
    assert pickle.loads(pickle.dumps(timed))[3] == 3
    assert copy.copy(timed).start == 0


class Failing(Numbers):
    def __getitem__(self, index: int) -> int:
        raise KeyError(index)


def test_errors_are_the_same(folder: Path) -> None:
    with pytest.raises(KeyError, match="0"):
        list(DataLoader(Failing(), 4))


def test_killed_worker_leaves_what_it_wrote(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(DataLoader(Kills(), 4, num_workers=1, multiprocessing_context="fork"))
    counts = counts_of(folder, "worker")
    assert counts[0]["seconds"] > 0
    assert costliest(counts) == f"dataset:{COMPUTE}"


def test_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "worker-1.jsonl").write_text(
        '{"pid": 1, "phase": "a", "rounds": 1}\n{"pid": 1, "phase": "a", "rounds": 2}\n{"pid": 1, "ph'
    )
    assert read_counts(tmp_path) == [{"pid": 1, "phase": "a", "rounds": 2}]


def test_looks_are_fewer_while_a_step_is_timed(tmp_path: Path) -> None:
    switch = sys.getswitchinterval()
    with running(tmp_path):
        for phase in ("actual", "supply"):
            announce_phase(tmp_path, phase)
            time.sleep(0.5)
    rounds = {line["phase"]: line["rounds"] for line in read_counts(tmp_path)}
    assert 1 <= rounds["actual"] < rounds["supply"]
    assert sys.getswitchinterval() == switch


def test_main_threads_line_and_other_threads_are_counted(tmp_path: Path) -> None:
    done = threading.Event()

    def computing() -> None:
        while not done.is_set():
            compute(0.1)

    def counts() -> dict[str, Any]:
        empty: dict[str, Any] = {"stages": {}, "lines": {}}
        return next((line for line in read_counts(tmp_path) if line["phase"] == "supply"), empty)

    def all_lines(found: dict[str, Any]) -> list[str]:
        return [line for rows in found["lines"].values() for line in rows]

    def seen() -> bool:
        found = counts()
        return "other:Prefetch" in found["stages"] and any(" compute:" in line for line in all_lines(found))

    beside = threading.Thread(target=computing, name="Prefetch-3")
    announce_phase(tmp_path, "supply")
    with running(tmp_path):
        beside.start()
        until = time.monotonic() + 30  # two that keep the GIL may keep a third from it for long
        while not seen() and time.monotonic() < until:
            compute(0.2)
        done.set()
        beside.join()
    assert f"code:{COMPUTE}" in counts()["stages"]["other:Prefetch"]
    found = [line for line in all_lines(counts()) if " compute: " in line]
    assert found
    assert all(line.startswith("timed_datasets.py:") for line in found)
    assert not any(thread.name == "headrace-sampler" for thread in threading.enumerate())
