"""The user's collation and torch's: the same calls, types and strides."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils import data
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
from headrace.device.structure import tensors
from headrace.engine import native_stream
from headrace.plan import make_plan
from headrace.transforms.own_code import collates_first
from support.datasets import Box
from support.equal import same
from support.images import image_folder as mixed_folder
from support.jpegs import image_folder
from support.sampling import one_in


def collate_boxes(batch: list[Box], *, collate_fn_map: Any = None) -> list[int]:
    return [box.value for box in batch]


def collate_last(batch: list[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
    return torch.stack(batch, -1)


@pytest.fixture
def extended() -> Iterator[None]:
    """The table of torch with a function for boxes, and another one for tensors."""
    before = dict(default_collate_fn_map)
    default_collate_fn_map[Box] = collate_boxes
    default_collate_fn_map[torch.Tensor] = collate_last
    yield
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


ARRAYS = st.builds(
    np.full,
    st.sampled_from([(), (0,), (2,), (2, 3)]),
    st.integers(0, 3),
    st.sampled_from(["?", "u1", "<i2", "<u2", ">i4", "i8", "f2", "f4", "f8", "c8", "U3", "O"]),
)
UNUSUAL = [
    *(np.float32(1.5), np.int64(3), "text", b"bytes", None, 2 + 1j, np.ma.ones(2)),
    *(np.ones((3, 2), np.float32).T, np.arange(4)[::-1], np.broadcast_to(np.float32(1), (2,))),
    *(torch.tensor(3), torch.ones(2, 3), torch.ones(3, 2).T, torch.ones(2).to_sparse()),
]
SAMPLES = st.recursive(
    st.integers(-(2**64), 2**64) | st.floats() | st.booleans() | ARRAYS | st.sampled_from(UNUSUAL),
    lambda inner: (
        st.tuples(inner, inner) | st.lists(inner, max_size=2) | st.dictionaries(st.just("a"), inner)
    ),
    max_leaves=4,
)


@pytest.mark.filterwarnings("ignore")  # torch's, of arrays that can't be written to
@given(st.lists(SAMPLES, min_size=1, max_size=3), st.booleans())
def test_any_samples_are_collated_in_the_calling_thread_as_by_torch(samples: Any, alike: bool) -> None:
    samples = 4 * samples[:1] if alike else samples
    outcomes: list[Any] = []
    for loader in (headrace.DataLoader, DataLoader):
        try:
            outcomes.append(next(iter(loader(samples, batch_size=len(samples), num_workers=0))))
        except Exception as error:
            outcomes.append(type(error))
    ours, theirs = ((repr(each), [_layout(tensor) for tensor in tensors(each)]) for each in outcomes)
    assert ours == theirs


def _layout(tensor: torch.Tensor) -> Any:
    return tensor.dtype, None if tensor.is_sparse else tensor.stride()


class Boxes(Dataset[Any]):
    """A large tensor and a box."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 100_000), float(index)), Box(index)


WORKERS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "worker_kind": "thread"},
]


@pytest.mark.usefixtures("extended")
@pytest.mark.parametrize("options", WORKERS)
def test_functions_in_the_table_of_torch_are_used(options: dict[str, Any]) -> None:
    ours = list(headrace.DataLoader(Boxes(), batch_size=4, **options))
    assert all(same(a, b) for a, b in zip(ours, DataLoader(Boxes(), batch_size=4), strict=True))
    assert ours[0][0].shape == (3, 100_000, 4)


@pytest.mark.usefixtures("extended")
def test_tensors_in_memory_are_collated_by_them() -> None:
    dataset = TensorDataset(torch.arange(40.0).reshape(10, 4))
    ours = list(headrace.DataLoader(dataset, batch_size=4))
    assert all(same(a, b) for a, b in zip(ours, DataLoader(dataset, batch_size=4), strict=True))


@pytest.mark.usefixtures("extended")
def test_native_images_are_collated_by_them(tmp_path: Path) -> None:
    transform = v2.Compose([v2.Resize((32, 32)), v2.PILToTensor()])
    dataset = ImageFolder(str(image_folder(tmp_path, 10)), transform)
    ours = list(headrace.DataLoader(dataset, batch_size=4))
    assert all(same(a, b) for a, b in zip(ours, DataLoader(dataset, batch_size=4), strict=True))
    assert ours[0][0].shape == (3, 32, 32, 4)


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
    root = mixed_folder(tmp_path_factory.mktemp("mixed"), 9)
    mixed_folder(root, 1, ".png")
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


def untouched(samples: list[Any]) -> list[Any]:
    return samples


FLOATS = v2.ToDtype(torch.float32, scale=True)


ENDS: dict[str, list[Any]] = {
    "ToTensor": [v1.ToTensor()],
    "ToTensor, Normalize": [v1.ToTensor(), v1.Normalize([0.5], [0.5])],
    "PILToTensor": [v1.PILToTensor()],
    "ToImage": [v2.ToImage()],
    "ToImage, ToDtype": [v2.ToImage(), FLOATS],
    "ToImage, ToDtype, ToPureTensor": [v2.ToImage(), FLOATS, v2.ToPureTensor()],
    "ToImage, ToDtype, RandomErasing": [v2.ToImage(), FLOATS, v2.RandomErasing(0)],
}


SHAPES = ((9, 9), (1, 7), (7, 1))


@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 4, "collate_fn": untouched}])
@pytest.mark.parametrize("gray", [False, True])
@pytest.mark.parametrize(
    ("end", "shape", "kind"),
    [
        *((end, (9, 9), v2.Compose) for end in ENDS),
        *one_in(3, product(ENDS, SHAPES[1:], (v1.Compose,))),
        *((end, (9, 9), nn.Sequential) for end in ENDS if end.startswith("ToImage")),
    ],
)
def test_samples_have_torchs_strides(
    folder: Any, end: str, shape: tuple[int, int], kind: Any, gray: bool, options: dict[str, Any]
) -> None:
    steps = [v2.Resize(12), v2.CenterCrop(shape), *([v2.Grayscale(1)] if gray else []), *ENDS[end]]
    dataset = ImageFolder(str(folder), nn.Sequential(*steps) if kind is nn.Sequential else kind(steps))
    ours = list(headrace.DataLoader(dataset, num_workers=0, **options))
    theirs = list(data.DataLoader(dataset, **options))
    assert same(ours, theirs)
    pairs = zip(ours, theirs, strict=True)
    if options["batch_size"] is None:
        assert all(our[0].stride() == their[0].stride() for our, their in pairs)
    else:
        both = (
            (a[0].stride(), b[0].stride()) for our, their in pairs for a, b in zip(our, their, strict=True)
        )
        assert all(our == their for our, their in both)


@pytest.mark.parametrize("gray", [False, True])
def test_erased_samples_have_their_values_and_torchs_strides(folder: Any, gray: bool) -> None:
    """Samples that are made one by one and in a batch are compared, with the same seed."""
    erasing = v2.RandomErasing(1, value=3)
    steps = [v2.Resize((9, 9)), *([v2.Grayscale(1)] if gray else []), v2.ToImage(), FLOATS, erasing]
    dataset = ImageFolder(str(folder), v2.Compose(steps))
    batch = next(iter(headrace.DataLoader(dataset, 30, seed=4, num_workers=0)))[0]
    options: dict[str, Any] = {"collate_fn": untouched, "num_workers": 0}
    listed = next(iter(headrace.DataLoader(dataset, 30, seed=4, **options)))
    strides = dataset[0][0].stride()
    for expected, (one, _) in zip(batch, listed, strict=True):
        assert (expected == 3).any()
        assert torch.equal(one, expected)
        assert one.stride() == strides
    singles = (headrace.DataLoader(dataset, None, seed=4, num_workers=count) for count in (0, 1))
    for (one, _), (other, _) in zip(*singles, strict=True):  # by Python, which draws other numbers
        assert (one == 3).any()
        assert torch.equal(one, other)
        assert one.stride() == other.stride() == strides
