"""Samples are replayed whatever made them: native code, the user's Python, or rows gathered from memory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, TensorDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.errors import ConfigError
from headrace.testing import draws, replay
from support.datasets import Made, Stream
from support.equal import same
from support.noisy_dataset import Noisy, NoisyBatches

N = 8


def plain() -> Made:
    return Made(lambda index: {"index": index, "values": torch.arange(3) + index}, N)


class Opened(Dataset[Any]):
    """Opens its images itself, and crops them at random."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self.steps = transforms.Compose([transforms.RandomResizedCrop(16), transforms.PILToTensor()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.steps(Image.open(self.paths[index]).convert("RGB")), index


def untouched(samples: list[Any]) -> list[Any]:
    return samples


def samples_of(loader: headrace.DataLoader[Any]) -> list[Any]:
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_seeded_python_drew_is_drawn_again(workers: int) -> None:
    loader = headrace.DataLoader(Noisy(N), 3, num_workers=workers, seed=4, collate_fn=untouched)
    for epoch in range(2):
        made = samples_of(loader)
        assert same([replay(loader, index) for index in range(N)], made)
        assert same([replay(loader, index, epoch) for index in range(N)], made)


def test_a_repeated_sample_is_replayed_by_its_occurrence() -> None:
    sampler = [3, 1, 3, 3]
    loader = headrace.DataLoader(Noisy(N), 2, sampler=sampler, num_workers=0, seed=4, collate_fn=untouched)
    made = samples_of(loader)
    assert same([replay(loader, 3, occurrence=n) for n in range(3)], [made[0], made[2], made[3]])


@pytest.mark.parametrize("deferred", [False, True])
def test_lazily_opened_images_are_replayed_by_pillow(folder: Path, deferred: bool) -> None:
    paths = [path for path, _ in ImageFolder(str(folder)).samples[:N]]
    loader = headrace.DataLoader(
        Opened(paths), 3, num_workers=1, seed=2, deferred=deferred, collate_fn=untouched
    )
    made = samples_of(loader)
    assert same([replay(loader, index) for index in range(N)], made)


def test_replaying_leaves_the_generators_as_they_were() -> None:
    loader = headrace.DataLoader(Noisy(N), 3, num_workers=0, seed=4)
    list(loader)
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    expected = Noisy(N)[0]
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    replay(loader, 5)
    assert same(Noisy(N)[0], expected)


@pytest.mark.parametrize("arguments", [{"num_workers": 0}, {"num_workers": 2}, {"worker_kind": "thread"}])
def test_samples_without_randomness_need_no_seed(arguments: dict[str, Any]) -> None:
    loader = headrace.DataLoader(plain(), 3, collate_fn=untouched, **{"num_workers": 2, **arguments})
    assert same([replay(loader, index) for index in range(N)], samples_of(loader))


UNKNOWN: dict[str, tuple[Any, dict[str, Any]]] = {
    "without a seed": (Noisy(N), {"num_workers": 0}),
    "in workers without a seed": (Noisy(N), {"num_workers": 2}),
    "on threads": (Noisy(N), {"num_workers": 2, "worker_kind": "thread", "seed": 4}),
    "in whole batches": (NoisyBatches(N), {"num_workers": 0, "seed": 4}),
    "in whole batches of a subset": (Subset(NoisyBatches(N), range(N)), {"num_workers": 0, "seed": 4}),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nobody_knows_is_not_replayed(name: str) -> None:
    dataset, arguments = UNKNOWN[name]
    loader = headrace.DataLoader(dataset, 3, collate_fn=untouched, **arguments)
    list(loader)
    with pytest.raises(ConfigError, match="drew random numbers for this sample, and nobody knows"):
        replay(loader, 0)


def test_a_subset_of_a_dataset_without_whole_batches_is_replayed() -> None:
    loader = headrace.DataLoader(Subset(Noisy(N), [5, 2, 7]), 3, num_workers=0, seed=4, collate_fn=untouched)
    made = samples_of(loader)
    assert same([replay(loader, index) for index in range(3)], made)


def test_gathered_samples_are_the_datasets_own() -> None:
    dataset = TensorDataset(torch.arange(N), torch.rand(N, 3))
    loader = headrace.DataLoader(dataset, N)
    (batch,) = loader
    for index in range(N):
        assert same(list(replay(loader, index)), [column[index] for column in batch])


def test_a_stream_has_no_sample_of_an_index() -> None:
    with pytest.raises(ConfigError, match="an IterableDataset itself decides"):
        replay(headrace.DataLoader(Stream(N)), 0)


def test_python_steps_that_draw_nothing_are_replayed_without_a_seed(folder: Path) -> None:
    steps = [transforms.Resize(20), transforms.CenterCrop(16), transforms.Lambda(as_it_is)]
    dataset = ImageFolder(str(folder), transforms.Compose([*steps, transforms.ToTensor()]))
    loader = headrace.DataLoader(dataset, N, num_workers=0)
    images, _ = next(iter(loader))
    for index in range(N):
        assert torch.equal(replay(loader, index)[0], images[index])


def as_it_is(image: Any) -> Any:
    return _same(image)


def _same(image: Any) -> Any:
    return image


def test_draws_are_those_of_native_code_alone() -> None:
    with pytest.raises(ConfigError, match="Native code has no part in this loader"):
        draws(headrace.DataLoader(plain(), seed=1), 0)


def test_an_unknown_file_is_the_users_own_error(tmp_path: Path) -> None:
    loader = headrace.DataLoader(Opened([str(tmp_path / "none.jpg")]), num_workers=0, seed=1)
    with pytest.raises(FileNotFoundError):
        replay(loader, 0, epoch=0)
