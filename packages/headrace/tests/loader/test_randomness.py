"""Random parameters depend on (seed, epoch, index, occurrence), not on workers, batches or earlier draws."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset, WeightedRandomSampler
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
import headrace.testing
from headrace.order import Endless, RepeatedAugmentation, Sequential
from support.equal import same
from support.noisy_dataset import Noisy, NoisyBatches, noisy_collate

N = 30


@pytest.fixture
def pictures(folder: Path) -> ImageFolder:
    steps = [transforms.RandomResizedCrop(16), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return ImageFolder(str(folder), transforms.Compose(steps))


def by_index(loader: headrace.DataLoader) -> dict[int, Any]:
    """Samples of `Noisy` by their index."""
    return {
        int(i): (drawn, float(numpys), float(pythons))
        for indices, draws, *others in loader
        for i, drawn, numpys, pythons in zip(indices, draws, *others, strict=True)
    }


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 1, 2, 7])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_python_samples_are_the_same_on_any_workers(workers: int, batch_size: int) -> None:
    expected = by_index(headrace.DataLoader(Noisy(N), N, seed=3, num_workers=0))
    assert len({drawn for _, drawn, _ in expected.values()}) == N
    got = by_index(headrace.DataLoader(Noisy(N), batch_size, shuffle=True, seed=3, num_workers=workers))
    assert same(got, {i: expected[i] for i in got})
    assert len(got) == N


@pytest.mark.parametrize(
    "context",
    ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.long)],
)
def test_python_samples_are_the_same_on_any_kind_of_worker(context: str) -> None:
    expected = list(headrace.DataLoader(Noisy(N), 8, seed=3, num_workers=0, collate_fn=noisy_collate))
    loader = headrace.DataLoader(
        Noisy(N), 8, seed=3, num_workers=1, multiprocessing_context=context, collate_fn=noisy_collate
    )
    assert same(list(loader), expected)


@pytest.mark.parametrize("workers", [0, 1, 2, 7])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_native_samples_are_the_same_on_any_threads(
    pictures: ImageFolder, workers: int, batch_size: int
) -> None:
    whole = next(iter(headrace.DataLoader(pictures, N, seed=3, num_workers=2)))[0]
    loader = headrace.DataLoader(pictures, batch_size, seed=3, num_workers=workers)
    assert torch.equal(torch.cat([images for images, _ in loader]), whole)


def test_epochs_differ_and_persistent_workers_know() -> None:
    loader = headrace.DataLoader(Noisy(N), 8, seed=3, num_workers=1, persistent_workers=True)
    first, second = by_index(loader), by_index(loader)
    assert not any(same(first[i], second[i]) for i in range(N))
    loader.set_epoch(0)
    assert same(by_index(loader), first)


def test_whole_batches_and_subsets() -> None:
    loader = headrace.DataLoader(NoisyBatches(N), 8, seed=3, num_workers=0)
    assert same(list(loader), list(headrace.DataLoader(NoisyBatches(N), 8, seed=3, num_workers=1)))
    part = Subset(Subset(Noisy(N), range(20)), [4, 7, 19])
    one, three = (by_index(headrace.DataLoader(part, size, seed=3, num_workers=0)) for size in (1, 3))
    assert same(one, three)


def test_a_sample_is_seeded_alike_by_any_of_its_indices() -> None:
    first = next(iter(headrace.DataLoader(Noisy(N), sampler=[-1], seed=1, num_workers=0)))
    last = next(iter(headrace.DataLoader(Noisy(N), sampler=[torch.tensor(N - 1)], seed=1, num_workers=0)))
    assert same(first[1:], last[1:])


def test_keys_that_are_not_numbers() -> None:
    class ByName(Noisy):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(0)[1:]

    def draws(*names: str) -> Any:
        return list(headrace.DataLoader(ByName(), sampler=list(names), seed=1, num_workers=0))

    assert same(draws("a", "b", "a")[:2], draws("b", "a")[::-1])
    assert not same(*draws("a", "a"))


@pytest.mark.parametrize("collate", [None, noisy_collate])
def test_the_callers_generators_are_left_alone(pictures: ImageFolder, collate: Any) -> None:
    def numbers() -> list[float]:
        return [float(torch.rand(())), float(np.random.rand()), random.random()]

    for dataset in (Noisy(N), TensorDataset(torch.arange(N)), pictures):
        loader = headrace.DataLoader(dataset, 8, seed=1, num_workers=0, collate_fn=collate)
        drawn = []
        for use in (True, False):
            torch.manual_seed(1), np.random.seed(1), random.seed(1)
            iterator = iter(loader)
            if use:
                list(iterator)
            drawn.append(numbers())
        assert drawn[0] == drawn[1]


def test_an_index_that_comes_again_is_drawn_for_again(pictures: ImageFolder) -> None:
    loader = headrace.DataLoader(pictures, 3, sampler=[5, 5, 8, 5, -25, 8], seed=4, num_workers=2)
    images = torch.cat([images for images, _ in loader])
    for position, (index, occurrence) in enumerate([(5, 0), (5, 1), (8, 0), (5, 2), (5, 3), (8, 1)]):
        assert torch.equal(images[position], headrace.testing.replay(loader, index, occurrence=occurrence))
    assert len({image.numpy().tobytes() for image in images}) == 6
    drawn = {headrace.testing.draws(loader, 5, occurrence=occurrence) for occurrence in range(4)}
    assert len(drawn) == 4


@pytest.mark.parametrize("kind", ["native", "python"])
def test_occurrences_of_our_orders(pictures: ImageFolder, kind: str) -> None:
    dataset: Any = pictures if kind == "native" else Noisy(N)
    plain = list(headrace.DataLoader(dataset, 1, seed=6, num_workers=1))
    order = RepeatedAugmentation(N, 3, 3 * N)
    repeated = list(headrace.DataLoader(dataset, 3, sampler=order, seed=6, num_workers=1))
    which = 1 if kind == "python" else 0
    for position in range(N):
        index = int(order.at(np.array([3 * position]), 6, 0)[0][0])
        three = repeated[position][which]
        assert torch.equal(three[0], plain[index][which][0])
        assert not torch.equal(three[0], three[1])
        assert not torch.equal(three[1], three[2])


def test_endless_passes_differ(pictures: ImageFolder) -> None:
    loader = iter(headrace.DataLoader(pictures, N, sampler=Endless(Sequential(N)), seed=6, num_workers=1))
    first, second = next(loader), next(loader)
    assert torch.equal(first[1], second[1])
    assert not torch.equal(first[0], second[0])


def test_skipped_and_replaced_samples_are_as_random() -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> Any:
            if index == 3:
                raise ValueError("broken")
            return super().__getitem__(index)

    whole = by_index(headrace.DataLoader(Noisy(N), 8, seed=1, num_workers=0))
    loader = headrace.DataLoader(Broken(N), 8, seed=1, num_workers=0, on_error="skip")
    got = by_index(loader)
    del whole[3]
    assert same(got, whole)
    replaced = headrace.DataLoader(Broken(N), 8, seed=1, num_workers=0, on_error="replace")
    assert [i for batch in replaced for i in batch[0].tolist()][:6] == [0, 1, 2, 4, 4, 5]


def test_torchs_weighted_sampler_repeats_with_other_parameters() -> None:
    sampler = WeightedRandomSampler([1.0, 0.0, 0.0], 5)
    loader = headrace.DataLoader(Noisy(3), 5, sampler=sampler, num_workers=0)
    indices, drawn, *_ = next(iter(loader))
    assert indices.tolist() == [0] * 5
    assert len(drawn.unique(dim=0)) == 5


class Counted(Noisy):
    """Counts how often each sample is asked for, in memory that worker processes share."""

    def __init__(self, size: int, draws_from: int) -> None:
        super().__init__(size)
        self.draws_from = draws_from
        self.asked = torch.zeros(size, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: int) -> Any:
        self.asked[index] += 1
        return super().__getitem__(index) if index >= self.draws_from else (index, *[0.0] * 3)


@pytest.mark.parametrize("draws_from", [0, 1, 13, N])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_sample_is_asked_for_once(workers: int, draws_from: int) -> None:
    dataset = Counted(N, draws_from)
    loader = headrace.DataLoader(dataset, 8, seed=1, num_workers=workers, collate_fn=list)
    for epochs in (1, 2):
        assert sum(len(batch) for batch in loader) == N
        assert dataset.asked.tolist() == [epochs] * N


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_that_fails_after_a_draw_is_asked_for_once(workers: int) -> None:
    class Broken(Counted):
        def __getitem__(self, index: int) -> Any:
            made = super().__getitem__(index)
            if index == 3:
                raise ValueError("broken")
            return made

    dataset = Broken(8, 0)
    loader = headrace.DataLoader(dataset, 8, seed=1, num_workers=workers, collate_fn=list)
    with pytest.raises(ValueError, match="broken"):
        next(iter(loader))
    assert dataset.asked.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
