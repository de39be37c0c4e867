"""What torch's DataLoader gives, headrace's gives too: batches, types, order, generator state."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.order import Shuffled
from support.equal import same


class Numbers(data.Dataset[Any]):
    """Samples of nested types."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "name": str(index), "pair": (index, float(index))}


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


def assert_same_epochs(
    dataset: Any, epochs: int = 2, workers: int = 2, theirs: int = 0, **settings: Any
) -> None:
    """Also that both leave torch's generator in the same state. A shuffled order is ours: torch's loader
    takes it as a sampler."""
    given = dict(settings)
    if given.pop("shuffle", False):
        given["sampler"] = Shuffled(dataset)
    torch.manual_seed(3)
    torchs = data.DataLoader(dataset, num_workers=theirs, **given)
    expected = [list(torchs) for _ in range(epochs)]
    after = torch.get_rng_state()
    torch.manual_seed(3)
    for _ in range(epochs):
        list(data.DataLoader(dataset, num_workers=theirs, **settings))
    assert torch.equal(torch.get_rng_state(), after)
    torch.manual_seed(3)
    loader = headrace.DataLoader(dataset, num_workers=workers, **settings)
    got = [list(loader) for _ in range(epochs)]
    assert same(got, expected)
    assert torch.equal(torch.get_rng_state(), after)


def test_it_is_a_dataloader_with_torchs_arguments(dataset: ImageFolder) -> None:
    assert issubclass(headrace.DataLoader, data.DataLoader)
    theirs = inspect.signature(data.DataLoader.__init__).parameters
    ours = inspect.signature(headrace.DataLoader.__init__).parameters
    for name, parameter in theirs.items():
        assert ours[name].kind == parameter.kind, name
        if name not in ("num_workers", "pin_memory"):
            assert ours[name].default == parameter.default, name
    assert list(ours)[: len(theirs)] == list(theirs)
    assert ours["num_workers"].default == ours["pin_memory"].default == "auto"


SETTINGS: dict[str, dict[str, Any]] = {
    "in order": {"batch_size": 4},
    "one by one": {},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "without the rest": {"batch_size": 4, "shuffle": True, "drop_last": True},
    "by a sampler": {"batch_size": 5, "sampler": [3, 1, 4, 1, 5, 9, 2, 6]},
    "from the end": {"batch_size": 2, "sampler": [-1, 0, -2]},
    "by a batch sampler": {"batch_sampler": [[0], [1, 2, 3], [4, 5]]},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_native_epochs_equal_torchs(dataset: ImageFolder, name: str, workers: int) -> None:
    assert headrace.DataLoader(dataset, **SETTINGS[name]).plan().native is not None
    assert_same_epochs(dataset, workers=workers, **SETTINGS[name])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["in order", "shuffled", "by a batch sampler"])
def test_python_epochs_equal_torchs(name: str, workers: int) -> None:
    assert headrace.DataLoader(Numbers()).plan().runs_python
    assert_same_epochs(Numbers(), workers=workers, theirs=workers, **SETTINGS[name])


def test_unbatched_and_iterable_datasets(dataset: ImageFolder) -> None:
    assert_same_epochs(dataset, batch_size=None, workers=0)
    assert_same_epochs(Stream(), batch_size=3, workers=0)
    assert same(
        list(headrace.DataLoader(Stream(), batch_size=3)), list(data.DataLoader(Stream(), batch_size=3))
    )
    assert_same_epochs(
        TensorDataset(torch.arange(10), torch.rand(10, 2)), batch_size=4, shuffle=True, workers=0
    )


def test_a_generator_of_the_users(dataset: ImageFolder) -> None:
    expected = data.DataLoader(
        dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9)
    )
    ours = headrace.DataLoader(
        dataset, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(9)
    )
    for _ in range(2):
        assert same(list(ours), list(expected))


def test_weighted_and_nested_samplers(dataset: ImageFolder) -> None:
    def batches() -> BatchSampler:
        weights = torch.linspace(0.1, 1.0, len(dataset)).tolist()
        return BatchSampler(
            WeightedRandomSampler(weights, 40, generator=torch.Generator().manual_seed(1)), 6, False
        )

    ours = headrace.DataLoader(dataset, batch_sampler=batches(), num_workers=2)
    assert same(list(ours), list(data.DataLoader(dataset, batch_sampler=batches())))


def test_a_batch_sampler_without_length(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_sampler=iter([[0, 1], [2]]))
    assert [len(labels) for _, labels in loader] == [2, 1]
    with pytest.raises(TypeError):
        len(loader)


def test_subsets_give_torchs_epochs(dataset: ImageFolder) -> None:
    parts = data.random_split(dataset, [20, 10], torch.Generator().manual_seed(0))
    for part in (*parts, Subset(parts[0], [5, 5, 0])):
        assert_same_epochs(part, batch_size=4)


def tell(samples: list[Any]) -> tuple[str, torch.Tensor, list[int]]:
    images, labels = zip(*samples, strict=True)
    return "mine", torch.stack(images).mean(0), list(labels)


def test_collate_functions_get_the_samples(dataset: ImageFolder) -> None:
    assert_same_epochs(dataset, batch_size=4, collate_fn=tell)
    assert_same_epochs(dataset, batch_size=4, collate_fn=data.default_collate)


def test_target_transforms(dataset: ImageFolder) -> None:
    dataset.target_transform = lambda label: (label, str(label))
    assert_same_epochs(dataset, batch_size=4)


def test_a_transform_changed_between_epochs_is_seen(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4)
    assert next(iter(loader))[0].shape[-1] == 32
    dataset.transform = transforms.Compose([transforms.Resize((16, 20)), transforms.ToTensor()])
    assert next(iter(loader))[0].shape == (4, 3, 16, 20)
    assert_same_epochs(dataset, batch_size=4)


def test_several_iterators_at_once(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    whole = list(loader)
    for left, right, expected in zip(loader, loader, whole, strict=True):
        assert same(left, expected)
        assert same(right, expected)


def test_an_epoch_left_early_leaves_the_next_whole(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    whole = list(loader)
    for _ in loader:
        break
    assert same(list(loader), whole)


def test_iterators_have_a_length_and_end_for_good(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=7, num_workers=1)
    iterator = iter(loader)
    assert len(loader) == len(iterator) == 5
    assert len(list(iterator)) == 5
    with pytest.raises(StopIteration):
        next(iterator)


def test_pickled_loaders_give_the_same(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    assert same(list(pickle.loads(pickle.dumps(loader))), list(loader))


def test_seeded_epochs_differ_and_can_be_had_again(dataset: ImageFolder) -> None:
    steps = [transforms.RandomResizedCrop(16), transforms.PILToTensor()]
    dataset.transform = transforms.Compose(steps)

    def images(loader: headrace.DataLoader) -> torch.Tensor:
        return torch.cat([images for images, _ in loader])

    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2, seed=1)
    first, second = images(loader), images(loader)
    assert not torch.equal(first, second)
    loader.set_epoch(0)
    assert torch.equal(images(loader), first)
    assert not torch.equal(images(headrace.DataLoader(dataset, batch_size=4, seed=2)), first)


def test_manual_seed_repeats_the_random_parameters(dataset: ImageFolder) -> None:
    dataset.transform = transforms.Compose([transforms.RandomResizedCrop(16), transforms.PILToTensor()])
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        loader = headrace.DataLoader(dataset, batch_size=30, shuffle=True)
        runs.append([next(iter(loader))[0] for _ in range(2)])
    assert same(runs[0], runs[1])
    assert not torch.equal(runs[0][0], runs[0][1])


def test_set_epoch_reaches_the_sampler(dataset: ImageFolder) -> None:
    sampler: Any = data.DistributedSampler(dataset, num_replicas=2, rank=1, shuffle=True)
    loader = headrace.DataLoader(dataset, batch_size=5, sampler=sampler)
    loader.set_epoch(3)
    ours = [labels.tolist() for _, labels in loader]
    sampler.set_epoch(3)
    assert ours == [labels.tolist() for _, labels in data.DataLoader(dataset, batch_size=5, sampler=sampler)]


def test_workers_see_the_users_dataset() -> None:
    def look(worker: int) -> None:
        info = data.get_worker_info()
        assert info is not None
        assert type(info.dataset) is Numbers
        assert info.id == worker

    assert len(list(headrace.DataLoader(Numbers(), num_workers=1, worker_init_fn=look))) == 23


def test_auto_workers_never_repeat_an_iterable_dataset() -> None:
    assert headrace.DataLoader(Stream()).num_workers == 0
    assert headrace.DataLoader(TensorDataset(torch.arange(3))).num_workers == 0
    assert headrace.DataLoader(Numbers()).num_workers >= 1


def test_casts_reach_python_datasets_too() -> None:
    images = TensorDataset(torch.rand(6, 3, 4, 5))
    loader = headrace.DataLoader(images, batch_size=3, dtype=torch.float16, memory_format=torch.channels_last)
    (batch,) = next(iter(loader))
    assert batch.dtype == torch.float16
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_random_sampler_objects(dataset: ImageFolder) -> None:
    sampler = RandomSampler(
        dataset, replacement=True, num_samples=50, generator=torch.Generator().manual_seed(2)
    )
    assert sum(len(labels) for _, labels in headrace.DataLoader(dataset, batch_size=8, sampler=sampler)) == 50


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_loader_counts_for_itself(duplicate: Callable[[Any], Any]) -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    list(loader)
    other = duplicate(loader)
    assert other.stats().batches == 0
    list(other)
    assert (loader.stats().batches, other.stats().batches) == (3, 3)
