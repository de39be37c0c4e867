"""What a worker process can't do with a device, and what it does with the threads of libraries."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.data import Dataset

import headrace
from headrace.engine.workers.transport import Inbox, Outbox

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
# torch's words, torch/cuda/__init__.py.
FORKED = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the"
    " 'spawn' start method"
)


class Made(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


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


def test_libraries_use_one_thread_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    cv2: Any = types.ModuleType("cv2")
    cv2.threads = 16
    cv2.setNumThreads = lambda count: setattr(cv2, "threads", count)
    cv2.getNumThreads = lambda: cv2.threads
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    torchs, opencvs = next(iter(headrace.DataLoader(Made(threads), num_workers=1, worker_kind="process")))
    assert torchs.tolist() == [1]
    assert opencvs.tolist() == [0]  # of OpenCV: no threads beside the caller's
    assert cv2.threads == 16


def four(_: int) -> None:
    sys.modules["cv2"].setNumThreads(4)


def test_worker_init_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    cv2: Any = types.ModuleType("cv2")
    cv2.threads = 16
    cv2.setNumThreads = lambda count: setattr(cv2, "threads", count)
    cv2.getNumThreads = lambda: cv2.threads
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    loader = headrace.DataLoader(Made(threads), num_workers=1, worker_kind="process", worker_init_fn=four)
    assert next(iter(loader))[1].tolist() == [4]


def to_cuda(index: int) -> Any:
    return torch.ones(3).cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_on_a_real_device(gpu: torch.device, method: str) -> None:
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
