"""Single samples of natively made images have torch's strides: with `batch_size=None` and an own collate."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import data
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
from support.equal import same
from support.sampling import one_in


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
    """Whether samples are made one by one or in a batch, of a seed."""
    erasing = v2.RandomErasing(1, value=3)
    steps = [v2.Resize((9, 9)), *([v2.Grayscale(1)] if gray else []), v2.ToImage(), FLOATS, erasing]
    dataset = ImageFolder(str(folder), v2.Compose(steps))
    batch = next(iter(headrace.DataLoader(dataset, 30, seed=4, num_workers=0)))[0]
    options: dict[str, Any] = {"collate_fn": untouched, "num_workers": 0}
    listed = next(iter(headrace.DataLoader(dataset, 30, seed=4, **options)))
    single = list(headrace.DataLoader(dataset, None, seed=4, num_workers=0))
    strides = dataset[0][0].stride()
    for expected, (one, _), (other, _) in zip(batch, listed, single, strict=True):
        assert (expected == 3).any()
        assert torch.equal(one, expected)
        assert torch.equal(other, expected)
        assert one.stride() == other.stride() == strides
