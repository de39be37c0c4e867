"""torchvision's sets that are one array: gathered by the batch, bit for bit torch's batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import headrace
from headrace.device.postprocess import Postprocess
from headrace.device.prefetcher import DevicePrefetcher
from headrace.engine.caller_stream import GatherStream
from headrace.order.batches import IndexBatch
from headrace.plan import make_plan
from headrace.sources.kinds.arrays import CIFAR, ColorArrays, GrayArrays
from support.array_datasets import COUNT, SETS, make_set
from support.equal import same

GREY = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST")


def normalize(name: str, api: Any) -> Any:
    if name in GREY:
        return api.Normalize([0.1307], [0.3081])
    return api.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.1])


def transforms_of(name: str) -> list[Any]:
    return [
        v1.ToTensor(),
        v1.Compose([v1.ToTensor(), normalize(name, v1)]),
        v1.PILToTensor(),
        v1.Compose([v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)]),
        v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True), normalize(name, v2)]),
        v2.ToImage(),
    ]


@pytest.mark.parametrize("name", SETS)
def test_batches_are_torchs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make_set(name, tmp_path, None, monkeypatch)
    assert len(dataset) == COUNT
    for transform in transforms_of(name):
        dataset.transform = transform
        for given in (dataset, Subset(Subset(dataset, range(1, 20)), [5, 0, 5, -2])):
            batches = []
            for kind in (DataLoader, headrace.DataLoader):
                generator = torch.Generator().manual_seed(3)
                loader = kind(given, 4, shuffle=True, generator=generator)
                batches.append([list(loader), list(loader)])
            assert loader.plan().gather is not None  # type: ignore[attr-defined]
            assert same(batches[1], batches[0]), (name, transform)


def test_every_known_class_is_tested() -> None:
    known = (*GrayArrays.classes, *ColorArrays.classes, *CIFAR.classes)
    assert {cls.__name__ for cls in known} == set(SETS)


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.uint8])
def test_casts_and_layouts_are_as_for_any_dataset(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_set(name, tmp_path, v1.ToTensor(), monkeypatch)
    loader = headrace.DataLoader(dataset, 8, dtype=dtype, memory_format=torch.channels_last)
    for (images, _), (expected, _) in zip(loader, DataLoader(dataset, 8), strict=True):
        assert torch.equal(images, expected.to(dtype))
        assert images.is_contiguous(memory_format=torch.channels_last)


def test_what_may_do_more_is_not_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(datasets.MNIST):
        pass

    def gathers(dataset: Any) -> bool:
        return make_plan(dataset).gather is not None

    dataset = make_set("CIFAR10", tmp_path, v1.ToTensor(), monkeypatch)
    assert gathers(dataset)
    flips = v1.Compose([v1.RandomHorizontalFlip(), v1.ToTensor()])
    wrong = v1.Compose([v1.ToTensor(), v1.Normalize([0.5], [0.0])])  # torchvision raises an error
    for transform in (None, v1.RandomCrop(32, padding=4), flips, wrong):
        dataset.transform = transform
        assert not gathers(dataset)
    dataset.transform, dataset.target_transform = v1.ToTensor(), str
    assert not gathers(dataset)
    dataset.target_transform = None
    kept = dataset.targets
    for targets in (np.array(kept), kept[1:], [float(target) for target in kept], [True] * COUNT):
        dataset.targets = targets
        assert not gathers(dataset)
    dataset.targets, dataset.data = kept, dataset.data[::-1]
    assert not gathers(dataset)
    mnist = Mine.__new__(Mine)
    mnist.data, mnist.targets = torch.zeros(3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)
    mnist.transform, mnist.target_transform = v1.ToTensor(), None
    assert not gathers(mnist)
    mnist.__class__ = datasets.MNIST
    assert gathers(mnist)
    monkeypatch.setattr(datasets.MNIST, "__getitem__", lambda self, i: self.data[i])
    assert not gathers(mnist)


@pytest.mark.parametrize("name", ["MNIST", "CIFAR10"])
def test_for_a_device_levels_are_sent_and_looked_up_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_set(name, tmp_path, transforms_of(name)[1], monkeypatch)
    plan = make_plan(dataset, device=torch.device("cuda"))
    assert [where for where, _ in plan.steps()] == ["native", "device", "device"]
    assert plan.gather is not None
    assert plan.values is not None
    batch = IndexBatch([3, 0, 3], np.zeros(3, np.int64))
    made = next(GatherStream(plan, iter([batch]), pinned=False))
    assert made.data[0].dtype == torch.uint8
    feed = DevicePrefetcher(None, Postprocess(plan.values))
    images, labels = feed.receive(feed.send(made.data, None))
    expected = next(iter(DataLoader(dataset, 3, sampler=[3, 0, 3])))
    assert same([images, labels], expected)
