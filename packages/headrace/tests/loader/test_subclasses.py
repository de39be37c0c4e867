"""Subclasses of DataLoader as large projects write them: they keep one iterator and take epochs from it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch.utils import data
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from support.datasets import Numbers
from support.equal import same
from support.jpegs import image_folder
from support.python import run_python
from support.sampling import one_in

T_co = TypeVar("T_co", covariant=True)
N = 10


class Forever:
    """The batches of another sampler, again and again."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from iter(self.sampler)


def set_past_the_guard(base: Any) -> Any:
    """Repeats its batch sampler as YOLO does: by object.__setattr__, and with a reset of its own."""

    class InfiniteDataLoader(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "batch_sampler", Forever(self.batch_sampler))
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

        def reset(self) -> None:
            self.iterator = self._get_iterator()

    return InfiniteDataLoader


def set_while_unguarded(base: Any) -> Any:
    """Repeats its batch sampler as timm does: the guard of torch's loader is lifted for a moment."""

    class MultiEpochsDataLoader(base):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._DataLoader__initialized = False
            if self.batch_sampler is None:  # type: ignore[has-type]
                self.sampler = Forever(self.sampler)  # type: ignore[has-type]
            else:
                self.batch_sampler = Forever(self.batch_sampler)  # type: ignore[has-type]
            self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.sampler.sampler if self.batch_sampler is None else self.batch_sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

    return MultiEpochsDataLoader


PATTERNS = {"past the guard": set_past_the_guard, "unguarded": set_while_unguarded}
SETTINGS: dict[str, dict[str, Any]] = {
    "in order": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "without the rest": {"batch_size": 4, "drop_last": True, "shuffle": True},
    "by a sampler": {"batch_size": 3, "sampler": [4, 4, 2, 0]},
}


def epochs(loader: Any, count: int = 3) -> list[Any]:
    return [(len(loader), list(loader)) for _ in range(count)]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_that_keep_their_iterator_give_torchs_epochs(
    pattern: str, settings: str, workers: int
) -> None:
    found = []
    for base in (headrace.DataLoader, data.DataLoader):
        torch.manual_seed(7)
        loader = PATTERNS[pattern](base)(Numbers(N), num_workers=workers, **SETTINGS[settings])
        found.append(epochs(loader))
    assert same(found[0], found[1])


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("workers", [0, 2])
def test_native_loaders_that_keep_their_iterator_do_too(
    dataset: ImageFolder, pattern: str, workers: int
) -> None:
    ours = PATTERNS[pattern](headrace.DataLoader)(dataset, batch_size=8, num_workers=workers)
    assert ours.plan().native is not None
    theirs = PATTERNS[pattern](data.DataLoader)(dataset, batch_size=8)
    assert same(epochs(ours), epochs(theirs))


def test_unbatched_samples_repeat_too() -> None:
    found = [
        epochs(set_while_unguarded(base)(Numbers(N), batch_size=None, num_workers=0))
        for base in (headrace.DataLoader, data.DataLoader)
    ]
    assert same(found[0], found[1])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_reset_starts_from_the_dataset_as_it_is(workers: int, persistent: bool) -> None:
    class Scaled(Numbers):
        scale = 1

        def __getitem__(self, index: int) -> int:
            return index * self.scale

    if persistent and not workers:
        return
    found = []
    for base in (headrace.DataLoader, data.DataLoader):
        loader = set_past_the_guard(base)(
            Scaled(N), batch_size=4, num_workers=workers, persistent_workers=persistent
        )
        before = list(loader)
        loader.dataset.scale = 10
        loader.reset()
        assert type(loader.iterator).__module__.split(".")[0] == base.__module__.split(".")[0]
        found.append((before, list(loader)))
    assert same(found[0], found[1])


def test_dataloader_is_generic() -> None:
    class Mine(headrace.DataLoader[T_co]):
        """A generic subclass."""

    loader: headrace.DataLoader[int] = Mine[int](Numbers(N), num_workers=0)
    assert isinstance(loader, headrace.DataLoader)
    assert list(headrace.DataLoader[int](Numbers(N), num_workers=0)) == list(loader)
    assert list(Mine(Numbers(N), num_workers=0)) == list(loader)


SCRIPT = """
import torch, headrace
from torch.utils import data

class Numbers(data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        return index

class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(1000))

{make}
batches = iter(loader)
next(batches)
kept = [loader, batches]
"""
LOADERS = {
    "caller": "loader = headrace.DataLoader(Numbers(), num_workers=0)",
    "processes": "loader = headrace.DataLoader(Numbers(), num_workers=2)",
    "threads": "loader = headrace.DataLoader(Numbers(), num_workers=2, worker_kind='thread')",
    "gathered": "loader = headrace.DataLoader(data.TensorDataset(torch.arange(1000)))",
    "stream": "loader = headrace.DataLoader(Stream(), num_workers=0)",
    "stream in processes": "loader = headrace.DataLoader(Stream(), num_workers=2)",
    "native": "from torchvision import datasets, transforms as T\n"
    "steps = T.Compose([T.CenterCrop(32), T.ToTensor()])\n"
    "loader = headrace.DataLoader(datasets.ImageFolder({folder!r}, steps))",
}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "kind"), one_in(3, itertools.product(["cycle", "error"], LOADERS)))
def test_an_iterator_left_at_module_level_ends_silently(kind: str, how: str, folder: Any) -> None:
    make = LOADERS[kind].format(folder=str(folder))
    script = (
        SCRIPT.format(make=make)
        + {
            "cycle": "kept.append(kept)\nloader.me = batches\nimport builtins\nbuiltins.kept = kept\n",
            "error": "raise SystemExit(3)",
        }[how]
    )
    done = run_python(script, teardown=True)
    assert (done.returncode, done.stderr) == (3 if how == "error" else 0, "")


class Counting(data.Sampler[int]):
    """Without an end; counts what was read of it."""

    read = 0

    def __iter__(self) -> Iterator[int]:
        while True:
            self.read += 1
            yield self.read % N


def test_how_far_a_sampler_is_read_ahead_does_not_depend_on_measurements(tmp_path: Path) -> None:
    """It may draw as it is read: an epoch that is left would continue elsewhere."""
    image_folder(tmp_path, N, side=16)
    crop = transforms.Compose([transforms.CenterCrop(8), transforms.ToTensor()])
    folder = ImageFolder(str(tmp_path), crop)
    sampler = Counting()
    loader = headrace.DataLoader(folder, batch_size=2, sampler=sampler)
    assert loader.explain().startswith("plan: native")
    batches = iter(loader)
    next(batches)
    assert sampler.read == 10, "four batches in flight"
