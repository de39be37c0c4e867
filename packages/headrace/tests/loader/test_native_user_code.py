"""The user's code beside native threads: targets, collation, changes in mid-epoch, shared datasets."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset, default_collate
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from support.datasets import Numbers
from support.equal import same
from support.python import run_python

N = 48


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs, and every fourth file a BMP, which Pillow decodes on threads of its own."""
    root, rng = tmp_path_factory.mktemp("mixed"), np.random.default_rng(5)
    for i in range(N):
        path = root / "ab"[i % 2] / f"{i:02}.{'jpg' if i % 4 else 'bmp'}"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).save(path)
    return root


def images(root: Path, *steps: Any, **arguments: Any) -> ImageFolder:
    chosen = steps or (transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip())
    return ImageFolder(str(root), transforms.Compose([*chosen, transforms.ToTensor()]), **arguments)


def loader_of(dataset: Dataset[Any], **arguments: Any) -> headrace.DataLoader:
    loader = headrace.DataLoader(dataset, **{"batch_size": 8, "seed": 3, "num_workers": 2, **arguments})
    assert loader.explain().startswith("plan: native")
    return loader


class FailsSometimes:
    """A target_transform that fails in its fifth call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, target: int) -> int:
        self.calls += 1
        if self.calls == 5:
            raise KeyError("no such label")
        return 10 + target


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_target_transform_names_the_sample(mixed: Path, workers: int) -> None:
    batches = iter(loader_of(images(mixed, target_transform=FailsSometimes()), num_workers=workers))
    with pytest.raises(KeyError, match="no such label") as raised:
        next(batches)
    assert any("sample 4" in note for note in getattr(raised.value, "__notes__", ["sample 4"]))
    assert len(list(batches)) == N // 8 - 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [None, default_collate, list])
def test_samples_whose_target_fails_are_skipped(mixed: Path, workers: int, collate: Any) -> None:
    whole = next(iter(loader_of(images(mixed), collate_fn=list)))
    dataset = images(mixed, target_transform=FailsSometimes())
    loader = loader_of(dataset, num_workers=workers, on_error="skip", collate_fn=collate)
    first = next(iter(loader))
    expected = [(image, 10 + label) for i, (image, label) in enumerate(whole) if i != 4]
    assert same(first, expected if collate is list else default_collate(expected))
    failures = [(f.index, f.cause, f.action) for f in loader.stats().failures]
    assert failures == [(4, "KeyError: 'no such label'", "skipped")]


def test_samples_whose_target_fails_are_replaced(mixed: Path) -> None:
    whole = next(iter(loader_of(images(mixed), collate_fn=list)))
    loader = loader_of(images(mixed, target_transform=FailsSometimes()), on_error="replace", collate_fn=list)
    samples = next(iter(loader))
    assert same(samples, [(image, 10 + label) for image, label in (*whole[:4], whole[5], *whole[5:])])
    assert [(f.index, f.action) for f in loader.stats().failures] == [(4, "replaced")]


def test_a_batch_of_failing_targets_alone_is_left_out(mixed: Path) -> None:
    class Fails:
        calls = 0

        def __call__(self, target: int) -> int:
            self.calls += 1
            if self.calls <= 8:
                raise ValueError("bad")
            return target

    loader = loader_of(images(mixed, target_transform=Fails()), on_error="skip")
    assert len(list(loader)) == N // 8 - 1
    assert len(loader.stats().failures) == 8


def noisy_collate(samples: list[Any]) -> Any:
    return default_collate(samples), random.random(), np.random.rand(), torch.rand(2)


def test_pillows_threads_and_the_users_draws_leave_each_other_alone(mixed: Path) -> None:
    dataset = images(mixed, target_transform=lambda target: target + random.random())
    expected = list(loader_of(dataset, num_workers=0, collate_fn=noisy_collate))
    for workers in (1, 3):
        batches = iter(loader_of(dataset, num_workers=workers, collate_fn=noisy_collate))
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        assert same(list(batches), expected)
        after = random.random(), np.random.rand(), torch.rand(()).item()
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        assert after == (random.random(), np.random.rand(), torch.rand(()).item())


def test_a_transform_that_changes_in_mid_epoch_is_obeyed_in_the_next(mixed: Path) -> None:
    dataset = images(mixed, transforms.Resize((24, 24)))
    expected = list(loader_of(images(mixed, transforms.Resize((24, 24)))))
    loader = loader_of(dataset)
    batches = iter(loader)
    received = [next(batches)]
    resize: Any = dataset.transform.transforms[0]
    resize.size = (16, 16)
    received += batches
    assert same(received, expected)
    assert [images.shape[-1] for images, _ in loader] == [16] * (N // 8)


def test_a_hook_of_mid_epoch_is_called_in_the_next(mixed: Path) -> None:
    dataset = images(mixed, transforms.Resize((24, 24)))
    loader = loader_of(dataset, num_workers=0)
    expected = [images for images, _ in loader]
    batches = iter(loader)
    received = [next(batches)[0]]
    resize: Any = dataset.transform.transforms[0]
    resize.register_forward_hook(lambda module, given, image: image.transpose(Image.Transpose.ROTATE_180))
    received += [images for images, _ in batches]
    assert same(received, expected)
    turned = [images.flip(-1, -2) for images, _ in loader]
    assert same(turned, expected)


SHARED: dict[str, Callable[[Path], Dataset[Any]]] = {
    "native": images,
    "native, then Python": lambda root: images(
        root, transforms.RandomResizedCrop(24), transforms.Lambda(lambda image: image)
    ),
    "Python": lambda root: Numbers(N),
}


@pytest.mark.parametrize("kind", SHARED)
def test_loaders_that_share_a_dataset_dont_mix_their_samples(mixed: Path, kind: str) -> None:
    dataset = SHARED[kind](mixed)
    backwards = Subset(Subset(dataset, range(N)), list(range(N - 1, -1, -1)))
    options: list[tuple[Dataset[Any], dict[str, Any]]] = [
        (dataset, {"shuffle": True, "seed": 1}),
        (backwards, {"seed": 2}),
        (Subset(dataset, [7, 7, 3]), {"seed": 2}),
    ]
    alone = [list(headrace.DataLoader(each, 8, num_workers=1, **given)) for each, given in options]
    loaders = [iter(headrace.DataLoader(each, 8, num_workers=1, **given)) for each, given in options]
    together: list[list[Any]] = [[] for _ in options]
    for _ in range(N // 8):
        for batches, received in zip(loaders, together, strict=True):
            received += [batch for batch in [next(batches, None)] if batch is not None]
    assert same(together, alone)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_begun_in_inference_mode_can_be_trained_with(mixed: Path, workers: int) -> None:
    loader = loader_of(images(mixed), num_workers=workers)
    with torch.inference_mode():
        batches = iter(loader)
        next(batches)
    weight = torch.ones((), requires_grad=True)
    for pictures, _ in batches:
        (weight * pictures).sum().backward()
    assert weight.grad is not None


def test_a_dropped_loaders_threads_end_without_a_collection(mixed: Path) -> None:
    others = set(threading.enumerate())
    gc.collect()
    gc.disable()
    try:
        loader = loader_of(images(mixed))
        assert len(list(loader)) == N // 8
        assert set(threading.enumerate()) - others
        del loader
        deadline = time.monotonic() + 60
        while set(threading.enumerate()) - others:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        gc.enable()


MANY_LOADERS = """
import os, sys
import headrace
from torchvision import transforms
from torchvision.datasets import ImageFolder

steps = [transforms.RandomResizedCrop(24), transforms.ToTensor()]
dataset = ImageFolder(sys.argv[1], transforms.Compose(steps))

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

def use(leave):
    batches = iter(headrace.DataLoader(dataset, 8, num_workers=2))
    for _ in batches:
        if leave:
            break

for number in range(250):
    use(leave=number % 2)
    if number == 49:
        before = resident()
print(resident() - before)
"""


@pytest.mark.slow
def test_loaders_that_are_used_and_dropped_leave_no_memory_behind(mixed: Path) -> None:
    done = run_python(MANY_LOADERS, mixed, check=True)
    assert float(done.stdout) < 10  # MB; 29 while the threads of each waited for the garbage collection
