"""collate functions that collate first, as MixUp and CutMix are used: called with the native batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
from headrace.engine import native_stream
from headrace.plan import make_plan
from headrace.transforms.own_code import collates_first
from support.equal import same
from support.images import image_folder

CLASSES = 2
cutmix, mixup = v2.CutMix(num_classes=CLASSES), v2.MixUp(num_classes=CLASSES, alpha=0.4)
either = v2.RandomChoice([cutmix, mixup])


def by_name(batch: Any) -> Any:
    return either(*default_collate(batch))


def by_module(samples: Any) -> Any:
    images, labels = torch.utils.data.default_collate(samples)
    return mixup(images, labels)


def as_dict(batch: Any) -> Any:
    images, labels = default_collate(batch)
    images.mul_(2.0)
    return {"images": images, "labels": labels}


def from_closure() -> Callable[[Any], Any]:
    collate, mix = default_collate, v2.MixUp(num_classes=CLASSES)
    return lambda batch: mix(*collate(batch))


FIRST: dict[str, Callable[[Any], Any]] = {
    "function": by_name,
    "module": by_module,
    "dict": as_dict,
    "closure": from_closure(),
    "lambda": lambda batch: cutmix(*default_collate(batch)),
    "nothing else": lambda batch: default_collate(batch),
}


def counts(batch: Any) -> Any:
    return default_collate(batch), len(batch)


def twice(batch: Any) -> Any:
    images, labels = default_collate(batch)
    return images, default_collate(batch)[1], labels


def in_a_loop(batch: Any) -> Any:
    for _ in range(2):
        result = default_collate(batch)
        result[0].add_(1)
    return result


def captured(batch: Any) -> Any:
    result = default_collate(batch)
    return result, (lambda: batch)()[0][1]


def looked_at(batch: Any) -> Any:
    images, labels = default_collate(batch)
    return images, labels, len(locals()["batch"])


def reversed_first(batch: Any) -> Any:
    return default_collate(list(reversed(batch)))


def with_default(batch: Any, mix: Any = None) -> Any:
    return default_collate(batch)


OTHERS = {
    each.__name__: each
    for each in (counts, twice, in_a_loop, captured, looked_at, reversed_first, with_default)
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> ImageFolder:
    """JPEGs, and a PNG, which Pillow decodes."""
    root = image_folder(tmp_path_factory.mktemp("mixed"), 9)
    image_folder(root, 1, ".png")
    return ImageFolder(str(root), v1.Compose([v1.Resize((24, 20)), v1.ToTensor()]))


def drawn_alike(collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`collate`, whose random numbers are the same in both loaders."""

    def seeded(samples: Any) -> Any:
        torch.manual_seed(5)
        random.seed(5)
        return collate(samples)

    return seeded


@pytest.mark.parametrize("name", FIRST)
def test_functions_that_collate_first_are_found(name: str) -> None:
    assert collates_first(FIRST[name])


@pytest.mark.parametrize("name", OTHERS)
def test_functions_that_do_anything_else_with_their_samples_are_not(name: str) -> None:
    assert not collates_first(OTHERS[name])


@pytest.mark.parametrize(
    "function", [default_collate, list, cutmix, drawn_alike(by_name), lambda batch: batch]
)
def test_what_isnt_such_a_function_is_not(function: Any) -> None:
    assert not collates_first(function)


def another_collate(samples: Any) -> Any:
    return samples


def test_another_function_of_that_name_is_not_torchs() -> None:
    names = {"default_collate": another_collate}
    exec("def collate(batch): return default_collate(batch)", names)
    assert not collates_first(names["collate"])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", [*FIRST, *OTHERS])
def test_batches_are_torchs_for_the_same_random_numbers(
    dataset: ImageFolder, name: str, workers: int
) -> None:
    collate = {**FIRST, **OTHERS}[name]
    loader = headrace.DataLoader(dataset, 4, num_workers=workers, collate_fn=collate, seed=1)
    assert loader.explain().startswith("plan: native")
    assert make_plan(dataset, collate_fn=collate).collate.collates_first == (name in FIRST)
    seeds: list[Any] = []
    original = native_stream.seed_generators

    def seed_alike(seed: int) -> None:
        seeds.append(seed)
        original(7)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_stream, "seed_generators", seed_alike)
        ours = list(loader)
    theirs = []
    for batch in torch.utils.data.DataLoader(dataset, 4, collate_fn=list):
        original(7)
        theirs.append(collate(batch))
    assert len(seeds) == len(theirs)
    assert all(map(same, ours, theirs))


def test_the_finished_batch_is_not_copied(dataset: ImageFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked: list[Any] = []
    stack = torch.stack

    def counted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        stacked.extend(1 for tensor in tensors if tensor.ndim == 3)  # images, not planes of one
        return stack(tensors, *args, **kwargs)

    monkeypatch.setattr(torch, "stack", counted)
    list(headrace.DataLoader(dataset, 4, num_workers=2, collate_fn=FIRST["nothing else"]))
    assert not stacked
    list(headrace.DataLoader(dataset, 4, num_workers=2, collate_fn=counts))
    assert stacked


def test_a_batch_that_the_user_holds_stays_as_it_is(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, 2, num_workers=2, collate_fn=as_dict, prefetch_factor=1)
    held = [(batch["images"], batch["images"].clone()) for batch in loader]
    assert all(torch.equal(now, then) for now, then in held)


def test_targets_are_collated_as_by_torch(dataset: ImageFolder, tmp_path: Path) -> None:
    named = ImageFolder(dataset.root, dataset.transform, target_transform=lambda label: f"class {label}")
    loader = headrace.DataLoader(named, 3, num_workers=2, collate_fn=FIRST["nothing else"])
    assert all(map(same, loader, torch.utils.data.DataLoader(named, 3)))


def test_an_empty_batch_is_torchs_error(dataset: ImageFolder) -> None:
    for kind in (headrace.DataLoader, torch.utils.data.DataLoader):
        with pytest.raises(IndexError):
            list(kind(dataset, batch_sampler=[[0, 1], []], collate_fn=FIRST["nothing else"]))


def test_without_torchs_table_the_function_gets_its_samples(
    dataset: ImageFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_stream, "default_collate_functions", dict)
    loader = headrace.DataLoader(dataset, 4, num_workers=2, collate_fn=FIRST["nothing else"])
    assert all(map(same, loader, torch.utils.data.DataLoader(dataset, 4)))
