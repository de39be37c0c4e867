"""Data sets in memory whose transforms work on images: planned for every epoch, from arrays as they are."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ImageOps
from torch.utils.data import DataLoader, Subset, default_collate
from torchvision import datasets
from torchvision import transforms as v1

import headrace
import headrace.testing
from headrace.plan import make_plan
from support.array_datasets import COUNT, make_set
from support.equal import same

CROP = v1.Compose([v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()])
# Draws nothing, and isn't a gather.
CENTER = v1.Compose([v1.CenterCrop(20), v1.ToTensor()])


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return make_set("CIFAR10", tmp_path, CENTER, monkeypatch)


def loaders(dataset: Any, **settings: Any) -> tuple[headrace.DataLoader, DataLoader[Any]]:
    ours = headrace.DataLoader(dataset, 5, num_workers=2, **settings)
    assert ours.plan().native is not None, ours.explain()
    return ours, DataLoader(dataset, 5, **settings)


def reason(dataset: Any, **settings: Any) -> str:
    """Why native code has no part in `dataset`."""
    plan = make_plan(dataset, **settings)
    assert plan.runs_python
    return plan.reasons[0]


def test_what_changes_between_epochs_takes_effect(cifar: Any) -> None:
    ours, theirs = loaders(cifar)
    assert same(list(ours), list(theirs))
    cifar.data[3] = 7
    cifar.targets[3] = 99
    assert same(list(ours), list(theirs))
    cifar.data, cifar.targets = cifar.data[:11] // 2, cifar.targets[:11]
    cifar.transform = v1.Compose([v1.CenterCrop(30), v1.PILToTensor()])
    assert same(list(ours), list(theirs))
    cifar.transform = None
    cifar.data, cifar.transform = cifar.data[:, ::2], CENTER
    assert same(list(ours), list(theirs))


def test_images_stay_where_they_are(cifar: Any) -> None:
    plan = make_plan(Subset(cifar, [4, 4, 0])).native
    assert plan is not None
    assert np.shares_memory(plan.source.images, cifar.data)  # type: ignore[attr-defined]


def test_batches_outlive_the_data_set(cifar: Any) -> None:
    expected = list(DataLoader(cifar, 5))
    batches = iter(headrace.DataLoader(cifar, 5, num_workers=2))
    first = next(batches)
    cifar.data, cifar.targets = cifar.data[:0], []
    assert same([first, *batches], expected)


def test_the_users_target_transform_and_collate_are_called_as_in_torch(cifar: Any) -> None:
    def collate(samples: list[Any]) -> Any:
        return {"samples": default_collate(samples), "types": [type(label) for _, label in samples]}

    cifar.target_transform = str
    assert same(*(list(loader) for loader in loaders(cifar)))
    assert same(*(list(loader) for loader in loaders(cifar, collate_fn=collate)))
    cifar.target_transform, cifar.transform = None, v1.ToTensor()
    assert same(*(list(loader) for loader in loaders(cifar, collate_fn=collate)))


def inverted(image: Any) -> Any:
    """A step of the user's."""
    return ImageOps.invert(image)


@pytest.mark.parametrize(
    "settings",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "forkserver"}],
)
def test_steps_of_the_users_run_between_native_ones(cifar: Any, settings: dict[str, Any]) -> None:
    end = [v1.ToTensor(), v1.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.1])]
    for steps in (
        [v1.CenterCrop(20), inverted, *end],
        [inverted, v1.Resize(40), *end],
        [inverted, v1.ToTensor()],
    ):
        cifar.transform = v1.Compose(steps)
        ours = headrace.DataLoader(Subset(cifar, range(20, 2, -2)), 4, **settings)
        assert ours.plan().head is not None
        theirs = list(DataLoader(ours.dataset, 4))
        assert same(list(ours), theirs)
        cifar.data, cifar.targets = 255 - cifar.data, [target + 1 for target in cifar.targets]
        assert same(list(ours), list(DataLoader(ours.dataset, 4)))


def test_what_is_drawn_before_a_step_of_the_users_is_replayed(cifar: Any) -> None:
    cifar.transform = v1.Compose(
        [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), inverted, v1.ToTensor()]
    )
    loader = headrace.DataLoader(cifar, 4, num_workers=2, seed=5)
    rows = [image for images, _ in loader for image in images]
    assert all(torch.equal(row, headrace.testing.replay(loader, i, 0)) for i, row in enumerate(rows))
    assert len(rows) == COUNT


def test_draws_depend_on_seed_epoch_and_index_alone(cifar: Any) -> None:
    cifar.transform = CROP
    by_workers = [
        [list(loader), list(loader)]
        for loader in (headrace.DataLoader(cifar, 4, seed=5, num_workers=n) for n in (0, 1, 2))
    ]
    assert same(by_workers[0], by_workers[1])
    assert same(by_workers[0], by_workers[2])
    assert not torch.equal(by_workers[0][0][0][0], by_workers[0][1][0][0])


@pytest.mark.parametrize("on_error", ["skip", "replace"])
def test_errors_of_target_transforms_are_dealt_with(cifar: Any, on_error: str) -> None:
    def refuses(label: int) -> int:
        if label == cifar.targets[2]:
            raise ValueError("not this one")
        return label

    cifar.target_transform = refuses
    loader = headrace.DataLoader(cifar, 5, num_workers=1, on_error=on_error)  # type: ignore[arg-type]
    labels = [label for _, batch in loader for label in batch.tolist()]
    lost = [i for i, label in enumerate(cifar.targets) if label == cifar.targets[2]]
    assert [failure.index for failure in loader.stats().failures] == lost
    assert {failure.path for failure in loader.stats().failures} == {None}
    assert len(labels) == (COUNT if on_error == "replace" else COUNT - len(lost))
    with pytest.raises(ValueError, match="not this one"):
        list(headrace.DataLoader(cifar, 5, num_workers=1))


def test_a_crop_larger_than_the_images_raises_torchvisions_error(cifar: Any) -> None:
    cifar.transform = v1.Compose([v1.RandomCrop(40), v1.ToTensor()])
    assert "torchvision raises an error" in reason(cifar)
    with pytest.raises(ValueError, match="Required crop size"):
        list(headrace.DataLoader(cifar, 5, num_workers=0))


def test_an_index_outside_of_the_data_set_is_an_index_error(cifar: Any) -> None:
    with pytest.raises(IndexError):
        list(headrace.DataLoader(cifar, 1, sampler=[0, COUNT], num_workers=1))


def test_what_may_do_more_runs_as_it_is_written(cifar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(datasets.CIFAR10):
        pass

    cifar.transform = CROP
    targets, data = cifar.targets, cifar.data
    for wrong in (np.array(targets), targets[1:], [float(t) for t in targets], [2**70] * COUNT):
        cifar.targets = wrong
        assert "its labels aren't one int per image" in reason(cifar)
    cifar.targets = targets
    for odd in (data[..., :1], data[:, :0], data.astype(np.float32), list(data)):
        cifar.data = odd
        assert "its data" in reason(cifar)
    cifar.data = data
    cifar.__class__ = Mine
    assert "a subclass of CIFAR10" in reason(cifar)
    cifar.__class__ = datasets.CIFAR10
    assert make_plan(cifar).native is not None
    assert "batching" in reason(cifar, batch_size=None)
    wrapper = functools.wraps(datasets.CIFAR10.__getitem__)(lambda self, i: self.data[i])
    with monkeypatch.context() as patched:
        patched.setattr(datasets.CIFAR10, "__getitem__", wrapper)
        assert "its __getitem__ was replaced" in reason(cifar)
    monkeypatch.setattr(datasets.CIFAR10, "__getitems__", wrapper, raising=False)
    assert "its __getitems__ is" in reason(cifar)


GRAY = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST")
GRAY_END = (v1.ToTensor(), v1.Normalize((0.1307,), (0.3081,)))
RANDOM = (v1.RandomCrop(28, padding=4), v1.RandomRotation(15), v1.ColorJitter(0.4, 0.4), v1.RandomInvert())


@pytest.mark.parametrize("name", GRAY)
def test_gray_images_are_transformed_as_by_torch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_set(name, tmp_path, v1.Compose([v1.Resize(32), v1.CenterCrop(30), *GRAY_END]), monkeypatch)
    ours, theirs = loaders(dataset)
    assert same(list(ours), list(theirs))
    dataset.target_transform = str
    assert same(list(ours), list(theirs))
    assert same(*(list(loader) for loader in loaders(Subset(dataset, [5, 5, 0]))))


def test_random_transforms_of_gray_images_are_torchvisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_set("MNIST", tmp_path, v1.Compose([*RANDOM, *GRAY_END]), monkeypatch)
    loader = headrace.DataLoader(dataset, COUNT, seed=3, num_workers=2)
    assert loader.plan().native is not None
    ((images, _),) = loader
    assert images.shape == (COUNT, 1, 28, 28)
    for i, image in enumerate(images):
        assert torch.equal(image, headrace.testing.replay(loader, i))


def test_a_step_of_the_users_own_gets_a_gray_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def invert(image: Any) -> Any:
        assert image.mode == "L"
        return ImageOps.invert(image)

    dataset = make_set("MNIST", tmp_path, v1.Compose([v1.CenterCrop(20), invert, v1.ToTensor()]), monkeypatch)
    ours = headrace.DataLoader(dataset, 5, num_workers=2)
    assert ours.explain().startswith("plan: split")
    assert same(list(ours), list(DataLoader(dataset, 5)))
