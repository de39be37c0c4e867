"""The sampler beside real loaders: what takes the time is named, and nothing is changed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from headrace.measure.sampler import Sampler, read_counts
from headrace.measure.worker_sampling import announce_phase, install_in_workers, uninstall_in_workers
from support.timed_datasets import (
    SAMPLES,
    Computes,
    Decodes,
    Kills,
    Numbers,
    Reads,
    Refuses,
    SlowNumber,
    Stream,
    Together,
    Transforms,
    compute,
    heavy_collate,
)

COMPUTE = f"compute (timed_datasets.py:{compute.__code__.co_firstlineno})"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Into which workers are sampled."""
    install_in_workers(tmp_path)
    announce_phase(tmp_path, "supply")
    yield tmp_path
    uninstall_in_workers()


@contextmanager
def sampled(sampler: Sampler) -> Iterator[Sampler]:
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def workers_counts(folder: Path) -> list[dict[str, Any]]:
    return read_counts(sorted(folder.glob("worker-*.jsonl")))


def share(counts: list[dict[str, Any]], stage: str) -> float:
    """Of the seconds in which samples and batches were made, those in `stage`."""
    seconds: dict[str, float] = {}
    for line in counts:
        for key, row in line["stages"].get("fetch", {}).items():
            if key not in ("idle", "start"):
                seconds[key] = seconds.get(key, 0.0) + row[2]
    return seconds.get(stage, 0.0) / sum(seconds.values())


def waiting(counts: list[dict[str, Any]], stage: str) -> float:
    rows = [line["stages"]["fetch"][stage] for line in counts if stage in line["stages"].get("fetch", {})]
    return sum(row[3] for row in rows) / sum(row[2] for row in rows)


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
    folder: Path, workers: int, dataset: Dataset[Any], collate: Any, stage: str
) -> None:
    context = "fork" if workers else None
    loader = DataLoader(dataset, 4, num_workers=workers, collate_fn=collate, multiprocessing_context=context)
    with sampled(Sampler(folder / "main.jsonl", "main", phase_file=folder / "phase")):
        batches = len(list(loader))
    main = read_counts([folder / "main.jsonl"])
    counts = workers_counts(folder) if workers else main
    assert len(counts) == max(1, workers)
    assert share(counts, stage) > 0.6, [line["stages"] for line in counts]
    if stage == "read":
        assert waiting(counts, stage) > 0.5
    assert sum(line["samples"]["count"] for line in counts) == SAMPLES
    assert sum(line["batches"]["count"] for line in counts) == batches
    assert {line["phase"] for line in counts} == {"supply"}
    if workers:
        assert main[0]["stages"]["wait"]["wait"][2] > 0.3 * main[0]["seconds"]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_follows_workers_however_they_start(folder: Path, method: str) -> None:
    loader = DataLoader(Reads(), 4, num_workers=2, multiprocessing_context=method)
    assert len(list(loader)) == SAMPLES // 4
    counts = workers_counts(folder)
    assert {line["role"] for line in counts} == {"worker"}
    assert len(counts) == 2
    assert share(counts, "read") > 0.6


def test_persistent_workers_follow_the_phases(folder: Path) -> None:
    loader = DataLoader(Computes(), 4, num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    for phase in ("actual", "supply"):
        announce_phase(folder, phase)
        assert len(list(loader)) == SAMPLES // 4
    assert loader._iterator is not None
    loader._iterator._shutdown_workers()
    counts = {line["phase"]: line for line in workers_counts(folder)}
    assert counts.keys() == {"actual", "supply"}
    # A phase ends at a look: some samples are counted with their neighbours'.
    assert counts["actual"]["samples"]["count"] + counts["supply"]["samples"]["count"] == 2 * SAMPLES
    assert counts["supply"]["samples"]["count"] > 0


def test_slow_samples_are_known_by_index(folder: Path) -> None:
    list(DataLoader(SlowNumber(), 4, num_workers=1, multiprocessing_context="fork"))
    samples = workers_counts(folder)[0]["samples"]
    assert samples["slowest"][0][1] == 5
    assert samples["slowest"][0][0] >= 0.1
    assert sum(count for _, count in samples["bins"]) == SAMPLES


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize(
    "dataset", [Numbers(), Together(), Refuses(), Stream()], ids=lambda d: type(d).__name__
)
def test_batches_are_the_same(
    folder: Path, dataset: Dataset[Any], batch_size: int | None, workers: int
) -> None:
    def batches() -> list[Any]:
        return list(DataLoader(dataset, batch_size, num_workers=workers, multiprocessing_context=context))

    context = "fork" if workers else None
    timed = batches()
    uninstall_in_workers()
    plain = batches()
    assert len(timed) == len(plain)
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(timed, plain, strict=True))
    if workers:
        counts = workers_counts(folder)[0]
        assert counts["batches"]["count"] >= len(plain)
        assert counts["samples"]["count"] == (10 if isinstance(dataset, IterableDataset) else SAMPLES)


class Failing(Numbers):
    def __getitem__(self, index: int) -> int:
        raise KeyError(index)


def test_errors_are_the_same(folder: Path) -> None:
    with pytest.raises(KeyError, match="0"):
        list(DataLoader(Failing(), 4))


def test_killed_worker_leaves_what_it_wrote(folder: Path) -> None:
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(DataLoader(Kills(), 4, num_workers=1, multiprocessing_context="fork"))
    counts = workers_counts(folder)
    assert counts[0]["seconds"] > 0
    assert share(counts, f"dataset:{COMPUTE}") > 0.6


def test_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "worker-1.jsonl"
    path.write_text(
        '{"pid": 1, "phase": "a", "rounds": 1}\n{"pid": 1, "phase": "a", "rounds": 2}\n{"pid": 1, "ph'
    )
    assert read_counts([path]) == [{"pid": 1, "phase": "a", "rounds": 2}]


def test_child_of_a_sampled_process_makes_its_own(tmp_path: Path) -> None:
    with sampled(Sampler(tmp_path / "parent.jsonl", "main")) as parent:
        compute(0.05)
        child = os.fork()
        if not child:
            try:
                parent.stop()  # its thread isn't here
                with sampled(Sampler(tmp_path / "child.jsonl", "main")):
                    compute(0.1)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    parents, childs = read_counts([tmp_path / "parent.jsonl"]), read_counts([tmp_path / "child.jsonl"])
    assert [line["pid"] for line in parents] == [os.getpid()]
    assert [line["pid"] for line in childs] == [child]
    assert childs[0]["rounds"] > 0


def test_looks_are_fewer_while_a_step_is_timed(tmp_path: Path) -> None:
    with sampled(Sampler(tmp_path / "main.jsonl", "main")) as sampler:
        for phase in ("actual", "supply"):
            sampler.phase(phase)
            time.sleep(0.5)
    rounds = {line["phase"]: line["rounds"] for line in read_counts([tmp_path / "main.jsonl"])}
    assert 1 <= rounds["actual"] < rounds["supply"]


def test_main_threads_line_and_other_threads_are_counted(tmp_path: Path) -> None:
    file, done = tmp_path / "main.jsonl", threading.Event()

    def computing() -> None:
        while not done.is_set():
            compute(0.1)

    def busy() -> dict[str, Any]:
        by_phase = {line["phase"]: line for line in read_counts([file] if file.exists() else [])}
        return by_phase.get("busy", {"stages": {}, "threads_wanting_gil": 0})

    def told() -> bool:
        return "other:Prefetch" in busy()["stages"] and busy()["threads_wanting_gil"] > 1

    beside = threading.Thread(target=computing, name="Prefetch-3")
    with sampled(Sampler(file, "main")) as sampler:
        beside.start()
        sampler.phase("busy")
        until = time.monotonic() + 30  # two that keep the GIL may keep a third from it for long
        while not told() and time.monotonic() < until:
            compute(0.4)
        counts = busy()
        done.set()
        beside.join()
    assert f"code:{COMPUTE}" in counts["stages"]["other:Prefetch"]
    assert any(line.endswith(" compute") and "timed_datasets.py" in line for line in counts["lines"])
    assert counts["threads_wanting_gil"] > 1
    assert not any(thread.name == "headrace-sampler" for thread in threading.enumerate())


def test_a_thread_seen_while_it_starts_gets_its_name_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, looks = threading.enumerate, iter(range(5))

    def starting() -> list[threading.Thread]:
        if next(looks, None) is None:
            return every()
        return [thread for thread in every() if thread.name != "Prefetch-3"] + [threading.Thread()]

    monkeypatch.setattr(threading, "enumerate", starting)
    beside = threading.Thread(target=compute, args=(0.4,), name="Prefetch-3")
    with sampled(Sampler(tmp_path / "main.jsonl", "main")):
        beside.start()
        beside.join()
    (counts,) = read_counts([tmp_path / "main.jsonl"])
    assert next(looks, None) is None
    assert f"code:{COMPUTE}" in counts["stages"]["other:Prefetch"]
    assert "other:native" not in counts["stages"]
