"""FiveCrop and TenCrop, whose crops the user's function makes a tensor of: torch's batches, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2

import headrace
from support.equal import same
from support.images import image_folder

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
normalize = v1.Normalize(MEAN, STD)
to_tensor = v1.ToTensor()
finish = v1.Compose([to_tensor, normalize])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs, and a PNG, which Pillow decodes."""
    root = image_folder(tmp_path_factory.mktemp("crops"), 7)
    image_folder(root, 1, ".png")
    return root


def with_closures() -> Callable[[Any], Any]:
    inner, to_float = v1.Normalize(MEAN, STD), v1.ToTensor()
    return lambda crops: torch.stack([inner(to_float(crop)) for crop in crops])


def stack_of_functions(crops: Any) -> Any:
    tensors = [F.normalize(F.to_tensor(crop), MEAN, std=STD) for crop in crops]
    return torch.stack(tensors, dim=0)


TAILS: dict[str, list[Any]] = {
    "usual": [v1.Lambda(lambda crops: torch.stack([v1.ToTensor()(crop) for crop in crops]))],
    "instance": [v1.Lambda(lambda crops: torch.stack([to_tensor(crop) for crop in crops]))],
    "normalized inside": [v1.Lambda(lambda crops: torch.stack([normalize(to_tensor(c)) for c in crops]))],
    "composed": [v1.Lambda(lambda crops: torch.stack([finish(crop) for crop in crops]))],
    "closures": [v1.Lambda(with_closures())],
    "functions": [stack_of_functions],
    "normalized after": [
        v1.Lambda(lambda crops: torch.stack([to_tensor(crop) for crop in crops])),
        normalize,
    ],
    "twice": [
        v1.Lambda(lambda crops: [to_tensor(crop) for crop in crops]),
        v1.Lambda(lambda tensors: torch.stack([normalize(tensor) for tensor in tensors])),
    ],
    "torch.stack itself": [
        v1.Lambda(lambda crops: [to_tensor(crop) for crop in crops]),
        v1.Lambda(torch.stack),
    ],
    "uint8": [v1.Lambda(lambda crops: torch.stack([v1.PILToTensor()(crop) for crop in crops]))],
    "v2": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), lambda crops: torch.stack(crops)],
}
CROPS = [
    v1.FiveCrop(24),
    v1.TenCrop((20, 31)),
    v2.TenCrop((31, 20), vertical_flip=True),
    v2.FiveCrop((40, 40)),
]


def compared(root: Path, transform: Any, **arguments: Any) -> headrace.DataLoader:
    dataset = ImageFolder(str(root), transform)
    loader = headrace.DataLoader(dataset, 3, **{"num_workers": 2, **arguments})
    ours, theirs = list(loader), list(torch.utils.data.DataLoader(dataset, 3))
    assert all(map(same, ours, theirs))
    assert len(ours) == len(theirs)
    assert ours[0][0].ndim == 5
    return loader


@pytest.mark.parametrize("name", TAILS)
def test_crops_are_stacked_natively(root: Path, name: str) -> None:
    text = compared(root, v1.Compose([v1.Resize(40), v1.TenCrop(32), *TAILS[name]])).explain()
    assert text.startswith("plan: native")
    assert "[N, 10, 3, 32, 32]" in text


@pytest.mark.parametrize("crop", CROPS, ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_each_crop_is_torchvisions(root: Path, crop: Any, workers: int) -> None:
    loader = compared(root, v1.Compose([crop, *TAILS["usual"]]), num_workers=workers)
    assert loader.explain().startswith("plan: native")


def reverse(crops: Any) -> Any:
    return torch.stack([to_tensor(crop) for crop in reversed(crops)])


def only_the_first(crops: Any) -> Any:
    return torch.stack([to_tensor(crops[0])] * 5)


def noisy(crops: Any) -> Any:
    return torch.stack([to_tensor(crop) * torch.rand(1) for crop in crops])


seen: list[Any] = []


def remembering(crops: Any) -> Any:
    seen.append(len(crops))
    return torch.stack([to_tensor(crop) for crop in crops])


class Doubled(v1.ToTensor):
    def __call__(self, image: Any) -> Any:
        return super().__call__(image) * 2


doubled = Doubled()
OTHERS: dict[str, Callable[[Any], Any]] = {
    "reversed": reverse,
    "the first": only_the_first,
    "remembers": remembering,
    "of another class": lambda crops: torch.stack([doubled(crop) for crop in crops]),
    "concatenated": lambda crops: torch.cat([to_tensor(crop)[None] for crop in crops]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_else_is_done_with_crops_runs_as_python(root: Path, name: str) -> None:
    loader = compared(root, v1.Compose([v1.Resize(40), v1.FiveCrop(32), v1.Lambda(OTHERS[name])]))
    assert loader.explain().startswith("plan: python")


def test_random_functions_of_crops_run_as_python(root: Path) -> None:
    dataset = ImageFolder(str(root), v1.Compose([v1.FiveCrop(24), v1.Lambda(noisy)]))
    assert not headrace.DataLoader(dataset, 2, num_workers=2).explain().startswith("plan: native")


@pytest.mark.parametrize(
    "transform",
    [
        v1.Compose(
            [v1.FiveCrop(24), v1.Lambda(lambda crops: torch.stack([to_tensor(c) for c in crops])), normalize]
        ),
        v1.Compose([v1.FiveCrop(24), *TAILS["usual"], v1.RandomErasing(p=0.0)]),
        v1.Compose([v1.RandomApply([v1.Resize(40)], p=1.0), v1.FiveCrop(24), *TAILS["usual"]]),
    ],
)
def test_pipelines_around_crops_are_torchs(root: Path, transform: Any) -> None:
    compared(root, transform)


@pytest.mark.parametrize("arguments", [{"dtype": torch.float16}, {"memory_format": torch.channels_last}])
def test_batches_that_ask_for_one_image_a_sample_are_made_by_python(
    root: Path, arguments: dict[str, Any]
) -> None:
    dataset = ImageFolder(str(root), v1.Compose([v1.FiveCrop(24), *TAILS["usual"]]))
    loader = headrace.DataLoader(dataset, 3, num_workers=0, **arguments)
    assert "5 images a sample" in loader.explain()
    theirs = torch.utils.data.DataLoader(dataset, 3)
    for (ours, _), (expected, _) in zip(loader, theirs, strict=True):
        assert torch.equal(ours, expected)


def test_samples_reach_a_collate_fn_as_torch_gives_them(root: Path) -> None:
    transform = v1.Compose([v1.FiveCrop(24), *TAILS["usual"]])
    compared_samples = []
    for kind in (headrace.DataLoader, torch.utils.data.DataLoader):
        loader = kind(ImageFolder(str(root), transform), 2, collate_fn=list)
        compared_samples.append([sample for batch in loader for sample in batch])
    for (ours, label), (theirs, expected) in zip(*compared_samples, strict=True):
        assert ours.shape == (5, 3, 24, 24)
        assert torch.equal(ours, theirs)
        assert label == expected


def test_a_crop_that_is_too_large_raises_torchvisions_error(root: Path) -> None:
    dataset = ImageFolder(str(root), v1.Compose([v1.FiveCrop(60), *TAILS["usual"]]))
    with pytest.raises(Exception, match="Requested crop size") as raised:
        next(iter(headrace.DataLoader(dataset, 2, num_workers=2)))
    assert "bigger than input size" in str(raised.value)


def test_crops_inside_of_a_container_stay_python(root: Path) -> None:
    inside = v1.RandomApply([v1.FiveCrop(24)], p=1.0)
    loader = compared(root, v1.Compose([inside, *TAILS["usual"]]))
    assert not loader.explain().startswith("plan: native")


def test_images_of_torchvisions_own_class_are_stacked_as_by_torch(root: Path) -> None:
    transform = v2.Compose([v2.FiveCrop(24), v2.ToImage(), lambda crops: torch.stack(crops)])
    loader = compared(root, transform)
    sample = next(iter(headrace.DataLoader(loader.dataset, 1, collate_fn=list)))[0][0]
    assert isinstance(sample, torch.Tensor)
    assert not isinstance(sample, tv_tensors.Image)
