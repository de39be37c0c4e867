"""The loader in place of torch's: signature, attributes, names and behavior."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch.utils import data
from torch.utils.data import (
    Subset,
    TensorDataset,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.order import Shuffled
from support.datasets import Numbers, Stream
from support.equal import same


class NestedNumbers(data.Dataset[Any]):
    """Samples of nested types."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "name": str(index), "pair": (index, float(index))}


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
    assert headrace.DataLoader(NestedNumbers()).plan().runs_python
    assert_same_epochs(NestedNumbers(), workers=workers, theirs=workers, **SETTINGS[name])


def test_unbatched_and_iterable_datasets(dataset: ImageFolder) -> None:
    assert_same_epochs(dataset, batch_size=None, workers=0)
    assert_same_epochs(Stream(10), batch_size=3, workers=0)
    assert same(
        list(headrace.DataLoader(Stream(10), batch_size=3)), list(data.DataLoader(Stream(10), batch_size=3))
    )
    assert_same_epochs(
        TensorDataset(torch.arange(10), torch.rand(10, 2)), batch_size=4, shuffle=True, workers=0
    )


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


def test_several_iterators_at_once(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    whole = list(loader)
    for left, right, expected in zip(loader, loader, whole, strict=True):
        assert same(left, expected)
        assert same(right, expected)


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


def test_auto_workers_never_repeat_an_iterable_dataset() -> None:
    assert headrace.DataLoader(Stream(10)).num_workers == 0
    assert headrace.DataLoader(TensorDataset(torch.arange(3))).num_workers == 0
    assert headrace.DataLoader(NestedNumbers()).num_workers >= 1


def test_casts_reach_python_datasets_too() -> None:
    images = TensorDataset(torch.rand(6, 3, 4, 5))
    loader = headrace.DataLoader(images, batch_size=3, dtype=torch.float16, memory_format=torch.channels_last)
    (batch,) = next(iter(loader))
    assert batch.dtype == torch.float16
    assert batch.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_loader_counts_for_itself(duplicate: Callable[[Any], Any]) -> None:
    loader = headrace.DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    list(loader)
    other = duplicate(loader)
    assert other.stats().batches == 0
    list(other)
    assert (loader.stats().batches, other.stats().batches) == (3, 3)


N = 40


class ResumableStream(Stream):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


IN_PROCESSES = {"map": Numbers(N), "stream": Stream(N), "resumable stream": ResumableStream(N)}


def kinds(dataset: ImageFolder) -> dict[str, headrace.DataLoader[Any]]:
    return {
        "native": headrace.DataLoader(dataset, 2, num_workers=2),
        "gathered": headrace.DataLoader(data.TensorDataset(torch.arange(N)), 2),
        "threads": headrace.DataLoader(Numbers(N), 2, num_workers=2, worker_kind="thread"),
        "in the caller": headrace.DataLoader(Numbers(N), 2, num_workers=0),
        "stream in the caller": headrace.DataLoader(Stream(N), 2),
    }


def alive(processes: list[Any]) -> list[bool]:
    return [process.is_alive() for process in processes]


def test_iterators_are_of_torchs_class(dataset: ImageFolder) -> None:
    in_processes = [headrace.DataLoader(each, num_workers=1) for each in IN_PROCESSES.values()]
    for loader in (*kinds(dataset).values(), *in_processes):
        iterator = iter(loader)
        assert isinstance(iterator, _BaseDataLoaderIter)
        assert iter(iterator) is iterator
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            pickle.dumps(iterator)


def test_without_worker_processes_there_is_nothing_to_shut_down(dataset: ImageFolder) -> None:
    for loader in kinds(dataset).values():
        iterator = iter(loader)
        next(iterator)
        assert iterator._workers == []
        assert loader._iterator is None
        iterator._shutdown_workers()
        assert len(list(loader)) == len(list(loader)) > 0


@pytest.mark.parametrize("kind", IN_PROCESSES)
@pytest.mark.parametrize("persistent", [False, True])
def test_shutting_down_ends_the_workers_of_an_epoch(kind: str, persistent: bool) -> None:
    loader = headrace.DataLoader(IN_PROCESSES[kind], 2, num_workers=2, persistent_workers=persistent)
    iterator = iter(loader)
    next(iterator)
    workers = iterator._workers
    assert alive(workers) == [True, True]
    iterator._shutdown_workers()
    assert alive(workers) == [False, False]
    assert [worker.exitcode for worker in workers] == [0, 0]
    with pytest.raises(RuntimeError, match="were shut down; start another epoch"):
        next(iterator)
    assert len(list(loader)) == (N // 2 if kind == "map" else N)


@pytest.mark.parametrize("kind", IN_PROCESSES)
def test_workers_can_be_asked_for_their_end_after_the_epoch(kind: str) -> None:
    iterator = iter(headrace.DataLoader(IN_PROCESSES[kind], 2, num_workers=2))
    workers = iterator._workers
    list(iterator)
    del iterator
    for worker in workers:
        worker.join(60)
        worker.terminate()
    assert alive(workers) == [False, False]
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_workers_are_listed_by_their_number_also_after_the_epoch() -> None:
    iterator = iter(headrace.DataLoader(Numbers(N), 2, num_workers=2))
    pids = [worker.pid for worker in iterator._workers]
    list(iterator)
    assert [worker.pid for worker in iterator._workers] == pids


@pytest.mark.parametrize("kind", IN_PROCESSES)
def test_clean_up_as_trainers_do_it_ends_kept_workers(kind: str) -> None:
    loader = headrace.DataLoader(IN_PROCESSES[kind], 2, num_workers=2, persistent_workers=True)
    assert loader._iterator is None
    for _ in range(2):
        whole = len(list(loader))
        kept: Any = loader._iterator
        workers = kept._workers
        assert alive(workers) == [True, True]
        kept._shutdown_workers()
        loader._iterator = None
        assert alive(workers) == [False, False]
        assert loader._iterator is None
    assert len(list(loader)) == whole


def test_setting_no_iterator_ends_kept_workers() -> None:
    """Lightning only does this, where the iterator isn't torch's own of several processes."""
    loader = headrace.DataLoader(Numbers(N), 2, num_workers=2, persistent_workers=True)
    list(loader)
    workers = loader._iterator._workers
    loader._iterator = None
    for worker in workers:
        worker.join(60)
    assert alive(workers) == [False, False]


def test_the_iterator_in_use_is_shown_where_workers_are_kept() -> None:
    loader = headrace.DataLoader(Numbers(N), 2, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    assert loader._iterator is iterator
    assert len(list(iterator)) == N // 2 - 1
    kept: Any = loader._iterator
    assert alive(kept._workers) == [True, True]
    assert isinstance(kept, _BaseDataLoaderIter)
    with pytest.raises(StopIteration):
        next(kept)


@pytest.fixture
def one_core() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize("kind", IN_PROCESSES)
def test_more_processes_than_cores_are_warned_of_once_where_they_are_started(kind: str) -> None:
    loader = headrace.DataLoader(IN_PROCESSES[kind], N, num_workers=2)
    with pytest.warns(UserWarning, match="excessive worker creation might get DataLoader running slow"):
        list(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)


def test_nobody_is_warned_of_processes_that_are_not_started() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = headrace.DataLoader(data.TensorDataset(torch.arange(4)), num_workers=1000)
        assert len(list(loader)) == 4


class Changed(data.Subset[int]):
    """Overrides one of two methods that belong together, which torch 2.15 refuses and 2.6 does not."""

    def __getitem__(self, index: Any) -> int:
        return super().__getitem__(index) + 1


class Described(data.Dataset[Any]):
    """Samples that show what a worker knows of itself, and if it may be changed."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[str]:
        info: Any = data.get_worker_info()
        named = sorted(field.name for field in fields(info)) if is_dataclass(info) else []
        try:
            info.id = 5
        except Exception as error:
            named.append(type(error).__name__)
        return [*named, str(info.id), str(info.num_workers), str(getattr(info, "worker_method", None))]


def outcome(make: Any) -> Any:
    try:
        return [batch.tolist() if hasattr(batch, "tolist") else batch for batch in make()]
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subset_that_changes_its_samples_is_taken_as_by_torch(workers: int) -> None:
    found = [
        outcome(lambda: loader(Changed(range(6), [1, 2, 3]), 2, num_workers=workers))  # type: ignore[arg-type]  # noqa: B023
        for loader in (headrace.DataLoader, data.DataLoader)
    ]
    assert found[0] == found[1]


class Asked(Numbers):
    times = 0

    def __len__(self) -> int:
        self.times += 1
        return super().__len__()


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"batch_size": None}], ids=str)
def test_a_dataset_is_asked_for_its_length_no_more_often_than_by_torch(options: dict[str, Any]) -> None:
    asked = {}
    for kind in (headrace.DataLoader, data.DataLoader):
        dataset = Asked(6)
        loader = kind(dataset, num_workers=0, **options)
        for _ in range(3):
            list(loader)
        asked[kind] = dataset.times
    assert asked[headrace.DataLoader] <= asked[data.DataLoader]


def test_workers_know_of_themselves_what_torchs_know() -> None:
    found = [
        outcome(lambda: loader(Described(), None, num_workers=2))  # noqa: B023
        for loader in (headrace.DataLoader, data.DataLoader)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_dataset_is_freed_with_its_loader_in_mid_epoch(method: str) -> None:
    dataset = Described()
    kept = weakref.ref(dataset)
    loader = headrace.DataLoader(dataset, None, num_workers=1, multiprocessing_context=method)
    batches = iter(loader)
    next(batches)
    del dataset, loader, batches
    gc.collect()
    assert kept() is None
