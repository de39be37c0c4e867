"""`default_collate` extended by the user's own functions, as the documentation of torch's `collate` shows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
from support.equal import same
from support.jpegs import image_folder


class Box:
    """A type that torch doesn't collate."""

    def __init__(self, index: int) -> None:
        self.index = index


def collate_boxes(batch: list[Box], *, collate_fn_map: Any = None) -> list[int]:
    return [box.index for box in batch]


def collate_last(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    return torch.stack(batch, -1)


@pytest.fixture(autouse=True)
def extended() -> Iterator[None]:
    """The table of torch with a function for boxes, and another one for tensors."""
    before = dict(default_collate_fn_map)
    default_collate_fn_map[Box] = collate_boxes
    default_collate_fn_map[torch.Tensor] = collate_last
    yield
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


class Boxes(Dataset[Any]):
    """A large tensor and a box."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 100_000), float(index)), Box(index)


WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "worker_kind": "thread"},
]


@pytest.mark.parametrize("options", WORKERS)
def test_functions_in_the_table_of_torch_are_used(options: dict[str, Any]) -> None:
    ours = list(headrace.DataLoader(Boxes(), batch_size=4, **options))
    assert all(same(a, b) for a, b in zip(ours, DataLoader(Boxes(), batch_size=4), strict=True))
    assert ours[0][0].shape == (3, 100_000, 4)


def test_tensors_in_memory_are_collated_by_them() -> None:
    dataset = TensorDataset(torch.arange(40.0).reshape(10, 4))
    ours = list(headrace.DataLoader(dataset, batch_size=4))
    assert all(same(a, b) for a, b in zip(ours, DataLoader(dataset, batch_size=4), strict=True))


def test_native_images_are_collated_by_them(tmp_path: Path) -> None:
    transform = v2.Compose([v2.Resize((32, 32)), v2.PILToTensor()])
    dataset = ImageFolder(str(image_folder(tmp_path, 10)), transform)
    ours = list(headrace.DataLoader(dataset, batch_size=4))
    assert all(same(a, b) for a, b in zip(ours, DataLoader(dataset, batch_size=4), strict=True))
    assert ours[0][0].shape == (3, 32, 32, 4)
