"""What is held is never overwritten, what is dropped is used again, and the budget is kept."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchvision.datasets import ImageFolder

import headrace
from support.python import run_python

KEEP_PART = {
    "whole": lambda images: images,
    "row": lambda images: images[1],
    "slice": lambda images: images[:, :, 3:5, ::2],
    "reshaped": lambda images: images.reshape(-1),
    "numpy": lambda images: images.numpy(),
    "detached view": lambda images: images.detach().permute(0, 2, 3, 1),
}


def copy_of(held: Any) -> torch.Tensor:
    return torch.as_tensor(held).clone()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([None, *KEEP_PART]), min_size=8, max_size=24))
def test_whatever_part_of_a_batch_is_held_stays_as_it_is(
    dataset: ImageFolder, parts: list[str | None]
) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    held: list[tuple[Any, torch.Tensor]] = []
    batches = iter(loader)
    for part in parts:
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        if part is not None:
            kept = KEEP_PART[part](batch[0])
            held.append((kept, copy_of(kept)))
        del batch
    for kept, copy in held:
        assert torch.equal(torch.as_tensor(kept), copy)


def test_all_batches_can_be_held(dataset: ImageFolder) -> None:
    images = [images for images, _ in headrace.DataLoader(dataset, batch_size=2, num_workers=2)]
    assert torch.equal(torch.cat(images), torch.stack([dataset[i][0] for i in range(len(dataset))]))


def test_dropped_memory_is_used_again(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    places = set()
    for _ in range(5):
        for images, _ in loader:
            places.add(images.data_ptr())
        del images
    assert len(places) <= 8, "four batches in flight, and two in the hands of the loop"


def test_the_budget_bounds_what_is_in_flight(dataset: ImageFolder) -> None:
    batch = 4 * 3 * 32 * 32 * 4
    for budget, most in ((1, 1), (batch, 1), (3 * batch, 3), (100 * batch, 6)):
        loader = headrace.DataLoader(
            dataset, batch_size=4, num_workers=2, memory_budget=budget, prefetch_factor=3
        )
        seen = 0
        for images, _ in loader:
            del images
            seen = max(seen, loader.stats().memory_used)
        assert seen <= max(budget, batch)
        assert seen <= most * batch


def test_slots_return_when_iterator_and_batches_are_gone(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, batch_size=4, num_workers=2)
    iterator = iter(loader)
    images, _ = next(iterator)
    assert loader.stats().memory_used > 0
    del iterator, images
    gc.collect()
    assert loader.stats().memory_used == 0
    assert loader.stats().in_flight == 0


GROWTH = """
import sys, psutil
from torchvision import transforms
from torchvision.datasets import ImageFolder
import headrace
steps = [transforms.RandomResizedCrop(96), transforms.ToTensor()]
loader = headrace.DataLoader(ImageFolder(sys.argv[1], transforms.Compose(steps)), batch_size=8, num_workers=2)
def epochs(n):
    for _ in range(n):
        for images, labels in loader:
            pass
    return psutil.Process().memory_info().rss
epochs(5)
before = epochs(5)
print(epochs(10) / before)
"""

MILLION = """
import sys, psutil
from torchvision import transforms
from torchvision.datasets import ImageFolder
import headrace
steps = [transforms.RandomResizedCrop(32), transforms.ToTensor()]
dataset = ImageFolder(sys.argv[1], transforms.Compose(steps))
dataset.samples = [dataset.samples[i % len(dataset.samples)] for i in range(1_281_167)]
dataset.targets = [label for _, label in dataset.samples]
loader = headrace.DataLoader(dataset, batch_size=64, num_workers=2, shuffle=True)
next(iter(headrace.DataLoader(ImageFolder(sys.argv[1], transforms.Compose(steps)), batch_size=4)))
before = psutil.Process().memory_info().rss
images, labels = next(iter(loader))
after = psutil.Process().memory_info().rss
print(loader.plan().native.source.nbytes, after - before)
"""


def run(code: str, *arguments: str) -> list[float]:
    done = run_python(code, *arguments)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_memory_does_not_grow_with_epochs(folder: Path) -> None:
    (ratio,) = run(GROWTH, str(folder))
    assert ratio < 1.02


def test_a_million_files_are_one_flat_buffer(folder: Path) -> None:
    source_bytes, growth = run(MILLION, str(folder))
    assert source_bytes < 200e6
    assert growth < 400e6  # the list of indices that torch's sampler makes (41 MB) and a second plan included
