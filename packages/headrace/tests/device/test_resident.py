"""Data that lives on the device: when it does, and that it follows what the user changes between epochs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset
from torchvision import datasets
from torchvision import transforms as v1

import headrace
from headrace.device import resident as resident_module
from headrace.device.postprocess import Postprocess
from headrace.device.resident import Residence
from headrace.engine.caller_stream import GatherStream
from headrace.errors import ConfigError
from headrace.order.batches import IndexBatch
from headrace.plan import Plan, make_plan
from support.array_datasets import mnist

META = torch.device("meta")


def gather_of(dataset: Any, device: torch.device | None = None) -> Plan:
    plan = make_plan(dataset, device=device)
    assert plan.gather is not None
    return plan


def there(plan: Plan) -> tuple[torch.Tensor, ...]:
    """The tensors that batches are gathered from."""
    assert plan.gather is not None
    return plan.gather.tensors


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    memory: dict[str, int | None] = {"bytes": 8000}
    monkeypatch.setattr(resident_module, "free_memory", lambda _: memory["bytes"])
    return memory


def tensors(n: int = 250) -> TensorDataset:
    return TensorDataset(torch.arange(n, dtype=torch.float32))


def test_on_the_cpu_nothing_moves() -> None:
    plan = gather_of(tensors())
    for wanted in (True, False, "auto"):
        residence = Residence(torch.device("cpu"), wanted)  # type: ignore[arg-type]
        assert residence.settle(plan) is plan
    assert residence.reason == "not resident: the device is the CPU"


def test_auto_takes_an_eighth_of_what_is_free(free: dict[str, int | None]) -> None:
    small, large = gather_of(tensors(250)), gather_of(tensors(251))
    residence = Residence(META, "auto")
    assert [t.device for t in there(residence.settle(small))] == [META]
    assert residence.reason == "resident on meta: 0 MB ≤ 0.125 of 0 MB free"
    assert residence.settle(large) is large
    assert residence.reason.startswith("not resident on meta")
    free["bytes"] = None
    unknown = Residence(META, "auto")
    assert unknown.settle(small) is small
    assert "doesn't report" in unknown.reason


def test_true_insists_and_false_never(free: dict[str, int | None]) -> None:
    plan = gather_of(tensors(2000))
    assert there(Residence(META, True).settle(plan))[0].device == META
    assert Residence(META, False).settle(plan) is plan
    free["bytes"] = 7999
    with pytest.raises(ConfigError, match=r"resident=True: the data takes 0 MB, and meta has 0 MB free"):
        Residence(META, True).settle(plan)
    free["bytes"] = None
    assert there(Residence(META, True).settle(plan))[0].device == META


def test_it_stays_from_epoch_to_epoch_and_follows_changes(free: dict[str, int | None]) -> None:
    dataset = tensors(100)
    residence = Residence(META, "auto")
    first = there(residence.settle(gather_of(dataset)))[0]
    free["bytes"] = 0  # what is there already isn't asked about again
    assert there(residence.settle(gather_of(dataset)))[0] is first
    assert there(residence.settle(gather_of(Subset(dataset, [3, 1]))))[0] is first
    dataset.tensors[0].add_(1)
    second = there(residence.settle(gather_of(dataset)))[0]
    assert second is not first
    dataset.tensors = (dataset.tensors[0].clone(),)
    assert there(residence.settle(gather_of(dataset)))[0] is not second


def test_tensors_with_gradients_stay(free: dict[str, int | None]) -> None:
    plan = gather_of(TensorDataset(torch.zeros(3, requires_grad=True)))
    assert Residence(META, True).settle(plan) is plan


def test_only_three_values_are_taken() -> None:
    with pytest.raises(ConfigError, match=r"resident \(1\) must be 'auto', True or False"):
        headrace.DataLoader(tensors(), resident=1)  # type: ignore[arg-type]


def grey_set() -> datasets.MNIST:
    return mnist(torch.arange(6 * 28 * 28).reshape(6, 28, 28).to(torch.uint8), v1.ToTensor())


def test_what_lives_there_is_finished_there(free: dict[str, int | None]) -> None:
    """Levels gathered on the device are looked up at once, not by the feed."""
    free["bytes"] = 1 << 30
    plan = gather_of(grey_set(), device=torch.device("cuda"))
    assert plan.values is not None
    assert plan.values.where == "device"
    settled = Residence(META, "auto").settle(plan)
    assert settled.values is not None
    assert settled.values.where == "native"


def batches_of(plan: Plan, indices: list[int]) -> Any:
    return next(GatherStream(plan, iter([IndexBatch(indices, np.zeros(3, np.int64))]), pinned=True)).data


@pytest.mark.gpu
def test_batches_of_resident_data(gpu: torch.device) -> None:
    dataset = grey_set()
    plan = gather_of(dataset, device=gpu)
    settled = Residence(gpu, True).settle(plan)
    images, labels = batches_of(settled, [5, 0, -1])
    assert (images.device, labels.device) == (gpu, gpu)
    expected = torch.stack([dataset[i][0] for i in (5, 0, 5)])
    assert torch.equal(images.cpu(), expected)
    assert labels.tolist() == [5, 0, 5]
    with pytest.raises(IndexError, match="index 6 is out of range for 6 rows"):
        batches_of(settled, [0, 6, 1])
    assert plan.values is not None
    sent = Postprocess(plan.values)([t.to(gpu) for t in batches_of(plan, [5, 0, -1])], None)
    assert torch.equal(sent[0].cpu(), expected)
