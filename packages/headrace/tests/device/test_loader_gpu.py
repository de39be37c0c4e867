"""Loaders with a device give what they give on the CPU, whoever makes the batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
from support.array_datasets import mnist
from support.jpegs import image_folder

pytestmark = pytest.mark.gpu


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 37

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((3, 8, 8), index / 2), "name": str(index)}


def native(tmp_path: Path) -> Any:
    values = [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3), v1.RandomErasing(0.7, value="random")]
    transform = v1.Compose([v1.RandomResizedCrop(32), *values])
    return ImageFolder(str(image_folder(tmp_path, 37, side=48)), transform)


MAKERS: dict[str, Any] = {
    "native": native,
    "gray": lambda _: mnist(torch.randint(0, 256, (37, 28, 28), dtype=torch.uint8), v1.ToTensor()),
    "tensors": lambda _: TensorDataset(torch.rand(37, 3, 4, 4), torch.arange(37)),
    "python": lambda _: Squares(),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cast": {"dtype": torch.bfloat16, "memory_format": torch.channels_last},
    "mixed": {"batch_transform": v2.MixUp(num_classes=37)},
}


def same_but_for_the_device(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, torch.Tensor):
        there = ours.device.type != "cpu" and ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        # Mixing is arithmetic, which a device may round otherwise.
        return there and torch.allclose(ours.cpu().double(), theirs.double(), rtol=1e-2, atol=1e-5)
    if isinstance(ours, dict):
        return ours.keys() == theirs.keys() and all(same_but_for_the_device(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same_but_for_the_device, ours, theirs))
    return bool(ours == theirs)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("name", OPTIONS)
def test_batches_are_those_of_the_cpu(gpu: torch.device, kind: str, name: str, tmp_path: Path) -> None:
    if (kind, name) == ("python", "mixed"):
        pytest.skip("MixUp wants labels")
    dataset = MAKERS[kind](tmp_path)
    batches = []
    for device in (None, gpu):
        options = {"shuffle": True, "seed": 3, "num_workers": 2, **OPTIONS[name]}
        loader = headrace.DataLoader(dataset, batch_size=5, device=device, **options)
        batches.append([*loader, *loader])
    assert len(batches[1]) == 16
    exact = name != "mixed"
    for theirs, ours in zip(*batches, strict=True):
        assert same_but_for_the_device(ours, theirs)
        if exact and isinstance(ours, list):
            assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", ["native", "gray", "tensors"])
@pytest.mark.parametrize("resident", ["auto", False])
def test_torchs_default_device_changes_nothing(
    gpu: torch.device, kind: str, resident: Any, tmp_path: Path
) -> None:
    dataset = MAKERS[kind](tmp_path)
    options: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 3, "num_workers": 2}
    expected = [*headrace.DataLoader(dataset, **options)]
    with torch.device(gpu):
        made = [*headrace.DataLoader(dataset, device=gpu, resident=resident, **options)]
    for ours, theirs in zip(made, expected, strict=True):
        assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


def test_copies_to_the_device_are_a_stage(gpu: torch.device) -> None:
    rows = TensorDataset(torch.arange(40.0))
    loader = headrace.DataLoader(rows, batch_size=10, device=gpu, resident=False)
    for batch in loader:
        batch[0].cpu()  # waits for its copy
    transfer = loader.stats().epochs[0].stages[-1]
    assert (transfer.name, transfer.samples, transfer.bytes) == ("transfer", 40, 160)
    assert transfer.seconds > 0
    assert "transfer" in str(loader.stats())
