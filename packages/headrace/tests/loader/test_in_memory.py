"""Datasets in memory: batches are gathered, or images transformed natively, with torch's values and order."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ImageOps
from torch.utils.data import DataLoader, Subset, TensorDataset, default_collate
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import headrace
import headrace.testing
from headrace.device.postprocess import Postprocess
from headrace.device.prefetcher import DevicePrefetcher
from headrace.engine.caller_stream import GatherStream
from headrace.order.batches import IndexBatch
from headrace.plan import make_plan
from support.array_datasets import COUNT, SETS, make_set
from support.equal import same

GRAY = ("MNIST", "FashionMNIST", "KMNIST", "EMNIST", "QMNIST")
TENSORS = (torch.arange(23), torch.rand(23, 3, 2), torch.rand(23) > 0.5, torch.rand(23, 4).half())


def gathers(loader: headrace.DataLoader) -> bool:
    return loader.plan().gather is not None


@settings(max_examples=30)
@given(st.integers(1, 30), st.booleans(), st.integers(0, 2**31), st.sampled_from([None, [5, 0, -1, 5], [3]]))
def test_batches_of_rows_are_torchs(
    batch_size: int, drop_last: bool, seed: int, rows: list[int] | None
) -> None:
    dataset: TensorDataset | Subset[tuple[torch.Tensor, ...]] = TensorDataset(*TENSORS)
    if rows is not None:
        dataset = Subset(dataset, rows)
    batches = []
    for kind in (DataLoader, headrace.DataLoader):
        generator = torch.Generator().manual_seed(seed)
        loader = kind(dataset, batch_size, shuffle=True, drop_last=drop_last, generator=generator)
        batches.append([list(loader), list(loader), len(loader)])
    assert gathers(loader)  # type: ignore[arg-type]
    assert same(batches[1], batches[0])


def test_a_sampler_may_give_any_index_torch_takes() -> None:
    dataset = TensorDataset(torch.arange(5))
    loader = headrace.DataLoader(dataset, sampler=[4, -5, 2], batch_size=3)
    assert next(iter(loader))[0].tolist() == [4, 0, 2]
    with pytest.raises(IndexError):
        next(iter(headrace.DataLoader(dataset, sampler=[7])))


def test_gradients_and_new_memory_as_from_torch() -> None:
    values = torch.rand(6, 2, requires_grad=True)
    (batch,) = next(iter(headrace.DataLoader(TensorDataset(values), batch_size=6)))
    batch.sum().backward()
    assert values.grad is not None
    plain = torch.zeros(6)
    (batch,) = next(iter(headrace.DataLoader(TensorDataset(plain), batch_size=6)))
    batch += 1
    assert plain.sum() == 0


def test_what_may_do_more_than_tensors_is_asked_sample_by_sample() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
            return tuple(2 * tensor for tensor in super().__getitem__(index))

    loader = headrace.DataLoader(Doubled(torch.arange(4)), batch_size=4, num_workers=0)
    assert not gathers(loader)
    assert next(iter(loader))[0].tolist() == [0, 2, 4, 6]
    dataset = TensorDataset(torch.arange(4))
    assert not gathers(headrace.DataLoader(dataset, batch_size=None))
    assert not gathers(headrace.DataLoader(dataset, collate_fn=len))
    assert not gathers(headrace.DataLoader(TensorDataset(torch.eye(3).to_sparse())))
    assert "plan: gather" in headrace.DataLoader(dataset, num_workers=3).explain()


def test_batches_after_a_bad_index_still_come() -> None:
    batches = iter(headrace.DataLoader(TensorDataset(torch.arange(5)), sampler=[0, 9, 3]))
    assert next(batches)[0].tolist() == [0]
    with pytest.raises(IndexError):
        next(batches)
    assert next(batches)[0].tolist() == [3]


def test_indices_that_are_not_ints_are_the_datasets_to_refuse() -> None:
    loader = headrace.DataLoader(Subset(TensorDataset(torch.arange(5)), [0.9, 1.7]), num_workers=0)  # type: ignore[list-item]
    assert not gathers(loader)


# --- images, gathered ---


def normalize(name: str, api: Any) -> Any:
    if name in GRAY:
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
        for samples in (dataset, Subset(Subset(dataset, range(1, 20)), [5, 0, 5, -2])):
            batches = []
            for kind in (DataLoader, headrace.DataLoader):
                generator = torch.Generator().manual_seed(3)
                loader = kind(samples, 4, shuffle=True, generator=generator)
                batches.append([list(loader), list(loader)])
            assert loader.plan().gather is not None  # type: ignore[attr-defined]
            assert same(batches[1], batches[0]), (name, transform)


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


def test_images_that_are_transformed_one_by_one_are_not_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = make_set("CIFAR10", tmp_path, v1.ToTensor(), monkeypatch)
    assert make_plan(dataset).gather is not None
    flips = v1.Compose([v1.RandomHorizontalFlip(), v1.ToTensor()])
    wrong = v1.Compose([v1.ToTensor(), v1.Normalize([0.5], [0.0])])  # torchvision raises an error
    for transform in (None, v1.RandomCrop(32, padding=4), flips, wrong):
        dataset.transform = transform
        assert make_plan(dataset).gather is None
    dataset.transform, dataset.target_transform = v1.ToTensor(), str
    assert make_plan(dataset).gather is None
    dataset.target_transform, dataset.data = None, dataset.data[::-1]
    assert make_plan(dataset).gather is None


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


# --- images, transformed ---

CROP = v1.Compose([v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip(), v1.ToTensor()])
# Draws nothing, and isn't a gather.
CENTER = v1.Compose([v1.CenterCrop(20), v1.ToTensor()])


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return make_set("CIFAR10", tmp_path, CENTER, monkeypatch)


def loaders(dataset: Any, **options: Any) -> tuple[headrace.DataLoader, DataLoader[Any]]:
    ours = headrace.DataLoader(dataset, 5, num_workers=2, **options)
    assert ours.plan().native is not None, ours.explain()
    return ours, DataLoader(dataset, 5, **options)


def reason(dataset: Any, **options: Any) -> str:
    """Why native code has no part in `dataset`."""
    plan = make_plan(dataset, **options)
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
    "options",
    [{"num_workers": 0}, {"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "forkserver"}],
)
def test_steps_of_the_users_run_between_native_ones(cifar: Any, options: dict[str, Any]) -> None:
    end = [v1.ToTensor(), v1.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.1])]
    for steps in (
        [v1.CenterCrop(20), inverted, *end],
        [inverted, v1.Resize(40), *end],
        [inverted, v1.ToTensor()],
    ):
        cifar.transform = v1.Compose(steps)
        ours = headrace.DataLoader(Subset(cifar, range(20, 2, -2)), 4, **options)
        assert ours.plan().runs_python
        theirs = list(DataLoader(ours.dataset, 4))
        assert same(list(ours), theirs)
        cifar.data, cifar.targets = 255 - cifar.data, [target + 1 for target in cifar.targets]
        assert same(list(ours), list(DataLoader(ours.dataset, 4)))


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
    assert ours.explain().startswith("plan: python")
    assert same(list(ours), list(DataLoader(dataset, 5)))
