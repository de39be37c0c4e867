"""Workers of the right kind make the samples, with readable errors, and with devices only if they may."""

from __future__ import annotations

import os
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import TensorDataset

import headrace
from headrace._machine import usable_cores
from headrace.engine.workers.transport import Inbox, Outbox
from support.datasets import Made, Stream

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def place(_: int) -> tuple[int, int]:
    return os.getpid(), threading.get_native_id()


PLACES = Made(place, 64)


def places(**arguments: Any) -> set[tuple[int, int]]:
    loader = headrace.DataLoader(PLACES, batch_size=2, **arguments)
    return {(int(p), int(t)) for pids, ids in loader for p, t in zip(pids, ids, strict=True)}


@pytest.mark.parametrize("kind", ["auto", "process"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_as_many_processes_are_used_as_were_asked_for(kind: Any, workers: int) -> None:
    pids = {pid for pid, _ in places(num_workers=workers, worker_kind=kind)}
    assert len(pids) == workers
    assert os.getpid() not in pids


def test_by_default_there_is_a_process_for_each_usable_core() -> None:
    assert len({pid for pid, _ in places()}) == min(usable_cores(), 32)
    cores = usable_cores()
    plural = "process" if cores == 1 else "processes"
    assert f"workers: {cores} {plural}: one for each usable core" in headrace.DataLoader(PLACES).explain()


@pytest.mark.parametrize("kind", ["auto", "process", "thread"])
def test_without_workers_the_caller_makes_samples(kind: Any) -> None:
    assert places(num_workers=0, worker_kind=kind) == {(os.getpid(), threading.get_native_id())}


def test_threads_are_used_where_they_were_asked_for() -> None:
    made_in = places(num_workers=3, worker_kind="thread")
    assert {pid for pid, _ in made_in} == {os.getpid()}
    assert threading.get_native_id() not in {thread for _, thread in made_in}


def test_the_number_of_workers_may_be_changed_between_epochs() -> None:
    loader = headrace.DataLoader(PLACES, batch_size=2, num_workers=0)
    for workers in (0, 3, 1, 0):
        loader.num_workers = workers
        pids = {int(pid) for pids, _ in loader for pid in pids}
        assert len(pids - {os.getpid()}) == workers


def test_rows_of_a_tensor_dataset_are_picked_by_the_caller() -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(8)), 4, collate_fn=list)
    assert "workers: none: a process would take longer to send a row than to pick it" in loader.explain()
    assert len(list(loader)) == 2


def test_the_workers_are_explained_before_the_first_epoch() -> None:
    loader = headrace.DataLoader(PLACES, num_workers=3)
    assert "workers: 3 processes: num_workers=3; each has a copy of the dataset" in loader.explain()
    loader = headrace.DataLoader(PLACES, num_workers=3, worker_kind="thread")
    assert "workers: 3 threads: num_workers=3, worker_kind='thread'; they share" in loader.explain()
    loader = headrace.DataLoader(PLACES, num_workers=0)
    assert "workers: none: num_workers=0" in loader.explain()


def test_the_workers_of_a_stream_are_explained() -> None:
    assert "workers: none: the default for an IterableDataset" in headrace.DataLoader(Stream(3)).explain()
    assert "workers: none: num_workers=0" in headrace.DataLoader(Stream(3), num_workers=0).explain()
    several = headrace.DataLoader(Stream(3), num_workers=2).explain()
    assert "workers: 2 processes: each iterates over its own copy of the dataset" in several


@pytest.mark.parametrize("kind", ["fibre", None, 3])
def test_an_unknown_kind_is_refused(kind: Any) -> None:
    with pytest.raises(headrace.ConfigError, match=r"worker_kind .* must be 'auto', 'thread' or 'process'"):
        headrace.DataLoader(PLACES, worker_kind=kind)


class RefusedError(Exception):
    """With more than a message."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status
        self.more: dict[str, Any] = {}


class HolderError(RefusedError):
    """Can't be pickled."""

    def __init__(self) -> None:
        super().__init__("the store refused it", 403)
        self.more["lock"] = threading.Lock()


class OddError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} {b}")


def refused() -> Exception:
    error = RefusedError("the store refused it", 403)
    error.more["url"] = "s3://bucket"
    return error


def first_error(make: Callable[[], BaseException], **options: Any) -> Exception:
    def raises(index: int) -> int:
        if index == 2:
            raise make()
        return index

    batches = iter(headrace.DataLoader(Made(raises, 4), num_workers=1, worker_kind="process", **options))
    try:
        for _ in range(4):
            next(batches)
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_an_exception_keeps_its_type_its_attributes_and_its_traceback() -> None:
    error = first_error(refused)
    assert isinstance(error, RefusedError)
    assert (error.args, error.status) == (("the store refused it", 403), 403)
    assert error.more == {"url": "s3://bucket"}
    shown = "".join(traceback.format_exception(error))
    assert "in DataLoader worker process 0" in shown
    assert "raise make()" in shown


@pytest.mark.parametrize(
    ("make", "message"),
    [(HolderError, "HolderError: .*the store refused it"), (lambda: OddError(1, 2), "OddError: odd 1 2")],
)
def test_one_that_cannot_be_sent_is_a_runtime_error_with_its_name(
    make: Callable[[], BaseException], message: str
) -> None:
    error = first_error(make)
    assert type(error) is RuntimeError
    with pytest.raises(RuntimeError, match=message):
        raise error
    assert "raise make()" in "".join(traceback.format_exception(error))


def stops(samples: list[Any]) -> Any:
    raise StopIteration


def test_a_stop_iteration_of_collate_fn_does_not_end_the_epoch() -> None:
    error = first_error(refused, collate_fn=stops)
    assert type(error) is RuntimeError
    assert "collate_fn raised StopIteration" in str(error)


# torch's words, torch/cuda/__init__.py.
FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the"
    " 'spawn' start method"
)


def on_device(_: int) -> Any:
    with FakeTensorMode():
        return torch.empty(3, device="cuda:1")


def uses_cuda(_: int) -> Any:
    raise RuntimeError(FORKED)


def first(samples: list[Any]) -> Any:
    return {"images": samples[0]}


def test_a_tensor_on_a_device_is_refused_with_the_fix() -> None:
    loader = headrace.DataLoader(Made(on_device), num_workers=1, worker_kind="process", collate_fn=first)
    with pytest.raises(
        headrace.ConfigError, match=r"tensor on cuda:1.*pass device='cuda:1' to headrace"
    ) as raised:
        next(iter(loader))
    assert "Return CPU tensors from the dataset and collate_fn" in str(raised.value)


def test_it_is_found_within_any_object() -> None:
    outbox = Outbox("test")
    with pytest.raises(headrace.ConfigError, match="cuda:1"):
        outbox.pack(0, types.SimpleNamespace(deep=[{"a": on_device(0)}]))
    message, files = outbox.pack(1, [torch.empty(2, device="meta")])
    assert files == []
    (empty,) = Inbox().load(message)
    assert empty.device.type == "meta"


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_cuda_in_a_forked_worker_is_explained(on_error: Any) -> None:
    loader = headrace.DataLoader(Made(uses_cuda), num_workers=1, worker_kind="process", on_error=on_error)
    with pytest.raises(
        headrace.ConfigError, match=r"forked from a process that uses CUDA.*device='cuda'"
    ) as raised:
        next(iter(loader))
    assert "worker_kind='thread'" in str(raised.value)


def fails(_: int) -> Any:
    raise RuntimeError("of the user's own")


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="of the user's own") as raised:
        next(iter(headrace.DataLoader(Made(fails), num_workers=1, worker_kind="process")))
    assert not isinstance(raised.value, headrace.ConfigError)


def threads(_: int) -> tuple[int, int]:
    return torch.get_num_threads(), sys.modules["cv2"].getNumThreads()


def four(_: int) -> None:
    sys.modules["cv2"].setNumThreads(4)


# Of OpenCV 0 is no thread beside the caller's; worker_init_fn has the last word.
@pytest.mark.parametrize(("init", "expected"), [(None, 0), (four, 4)])
def test_libraries_use_one_thread_in_a_worker(
    init: Any, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cv2: Any = types.ModuleType("cv2")
    cv2.threads = 16
    cv2.setNumThreads = lambda count: setattr(cv2, "threads", count)
    cv2.getNumThreads = lambda: cv2.threads
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    loader = headrace.DataLoader(Made(threads), num_workers=1, worker_kind="process", worker_init_fn=init)
    torchs, opencvs = next(iter(loader))
    assert (torchs.tolist(), opencvs.tolist()) == ([1], [expected])
    assert cv2.threads == 16


def to_cuda(index: int) -> Any:
    return torch.ones(3).cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_on_a_real_device(gpu: torch.device, method: str) -> None:
    if gpu.type != "cuda":
        pytest.skip("the error is CUDA's")
    torch.zeros(1).cuda()
    loader = headrace.DataLoader(
        Made(to_cuda), num_workers=1, worker_kind="process", multiprocessing_context=method, pin_memory=False
    )
    with pytest.raises(headrace.ConfigError, match="device='cuda"):
        next(iter(loader))


@pytest.mark.gpu
def test_pinned_batches_are_ready_when_they_are_pinned(gpu: torch.device) -> None:
    from support.worker_bench import Bench, all_of

    producer = Bench(Made(torch.tensor), workers=2, pin_memory=True).begin()
    made = list(all_of(producer))
    assert all(batch.data.is_pinned() for batch in made)
    assert [batch.data.tolist() for batch in made] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert producer.ready()
