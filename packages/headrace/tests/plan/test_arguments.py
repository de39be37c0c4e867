"""Every argument that torchvision's transforms take: read as meant, or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import PIL.Image
import pytest
import torchvision
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2

from headrace import transforms as ops
from headrace.transforms.op import NoNativeForm, Op
from headrace.transforms.reading import FILTERS

BOTH = pytest.mark.parametrize("api", [v1, v2], ids=["v1", "v2"])
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def read(transform: Any) -> Op:
    op = ops.find_op(type(transform))
    assert op is not None
    return op.read(transform)


@BOTH
@pytest.mark.parametrize("size", [7, [7], (7,), (7, 7), [7, 7]])
def test_crop_sizes(api: Any, size: Any) -> None:
    assert read(api.CenterCrop(size)) == ops.CenterCrop(7, 7)
    assert read(api.RandomCrop(size)) == ops.RandomCrop(7, 7)
    assert read(api.RandomResizedCrop(size)) == ops.RandomResizedCrop(7, 7, SCALE, RATIO, 2)


@BOTH
def test_height_comes_before_width(api: Any) -> None:
    assert read(api.CenterCrop((5, 9))) == ops.CenterCrop(5, 9)
    assert read(api.Resize((5, 9))) == ops.Resize(5, 9, 2)
    assert read(api.RandomCrop((np.int64(5), np.int64(9)))) == ops.RandomCrop(5, 9)


@BOTH
def test_resize_to_one_size_is_for_the_shorter_edge(api: Any) -> None:
    for size in (7, [7], (7,)):
        assert read(api.Resize(size)) == ops.ResizeShorter(7, None, 2)
    assert read(api.Resize(7, max_size=9)) == ops.ResizeShorter(7, 9, 2)


@BOTH
def test_every_filter_by_mode_and_by_number(api: Any) -> None:
    for mode in InterpolationMode:
        expected = ops.Resize(5, 9, int(FILTERS[mode]))
        assert read(api.Resize((5, 9), interpolation=mode)) == expected
    for number in range(6):
        expected = ops.Resize(5, 9, number)
        assert read(api.Resize((5, 9), interpolation=number)) == expected
        crop = api.RandomResizedCrop(5, interpolation=number)
        assert read(crop) == ops.RandomResizedCrop(5, 5, SCALE, RATIO, number)


def test_torchvisions_own_table_of_filters_is_ours() -> None:
    from torchvision.transforms.functional import pil_modes_mapping

    assert {mode: int(value) for mode, value in FILTERS.items()} == pil_modes_mapping


def test_v2_filters_by_name() -> None:
    if tuple(int(part) for part in torchvision.__version__.split(".")[:2]) < (0, 29):
        pytest.skip("this torchvision takes no names")
    assert read(v2.Resize((5, 9), interpolation="bicubic")) == ops.Resize(5, 9, 3)


@BOTH
@pytest.mark.parametrize("antialias", [True, False, None])
def test_antialias_says_nothing_about_pictures(api: Any, antialias: bool | None) -> None:
    assert read(api.Resize((5, 9), antialias=antialias)) == ops.Resize(5, 9, 2)
    crop = api.RandomResizedCrop(5, antialias=antialias)
    assert read(crop) == ops.RandomResizedCrop(5, 5, SCALE, RATIO, 2)


@BOTH
@pytest.mark.parametrize(
    ("padding", "sides"),
    [
        (None, None),
        ([0], (0, 0, 0, 0)),
        (3, (3, 3, 3, 3)),
        ([3], (3, 3, 3, 3)),
        ((3, 4), (3, 4, 3, 4)),
        ([1, 2, 3, 4], (1, 2, 3, 4)),
        ((0, 0, 0, 4), (0, 0, 0, 4)),
        ((-1, 0, 2, -4), (-1, 0, 2, -4)),
    ],
)
def test_padding(api: Any, padding: Any, sides: Any) -> None:
    assert read(api.RandomCrop(7, padding=padding)) == ops.RandomCrop(7, 7, sides)


@BOTH
@pytest.mark.parametrize(
    ("fill", "color"),
    [
        (0, (0, 0, 0)),
        (9, (9, 9, 9)),
        (9.7, (9, 9, 9)),
        ((1, 2, 3), (1, 2, 3)),
        ([1, 2, 3], (1, 2, 3)),
        ((5,), (5, 5, 5)),
        (None, (0, 0, 0)),
    ],
)
def test_fill(api: Any, fill: Any, color: Any) -> None:
    assert read(api.RandomCrop(7, padding=1, fill=fill)) == ops.RandomCrop(7, 7, (1, 1, 1, 1), False, color)
    needed = api.RandomCrop(7, pad_if_needed=True, fill=fill)
    assert read(needed) == ops.RandomCrop(7, 7, None, True, color)


def test_v2_fill_per_type() -> None:
    image = v2.RandomCrop(7, padding=1, fill={PIL.Image.Image: (1, 2, 3), tv_tensors.Mask: 0})
    assert read(image) == ops.RandomCrop(7, 7, (1, 1, 1, 1), False, (1, 2, 3))
    others = v2.RandomCrop(7, padding=1, fill={"others": 4})
    assert read(others) == ops.RandomCrop(7, 7, (1, 1, 1, 1), False, (4, 4, 4))
    with pytest.raises(NoNativeForm, match="fill names no value for PIL images"):
        read(v2.RandomCrop(7, padding=1, fill={tv_tensors.Mask: 0}))


@BOTH
def test_what_is_never_looked_at_doesnt_matter(api: Any) -> None:
    crop = api.RandomCrop(7, fill=(1, 2, 3), padding_mode="reflect")
    assert read(crop) == ops.RandomCrop(7, 7)


@BOTH
@pytest.mark.parametrize("p", [0, 0.0, 0.5, 1, 1.0, np.float32(0.25)])
def test_probabilities(api: Any, p: Any) -> None:
    assert read(api.RandomHorizontalFlip(p)) == ops.HorizontalFlip(float(p))
    assert read(api.RandomVerticalFlip(p)) == ops.VerticalFlip(float(p))


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (v1.Resize(7, max_size=7), r"max_size \(7\) must be greater than size \(7\)"),
        (v1.Resize((7, 8), max_size=9), "max_size beside two sizes: torchvision raises an error for it"),
        (v2.Resize(None, max_size=9), "size=None makes the longer edge max_size: no native form"),
        (v1.Resize((7.0, 8)), "size=7.0 isn't an int"),
        (v1.Resize(True), "size=True isn't an int"),
        (v1.Resize(0), "size 0×0 must be"),
        (
            v1.Resize(5, interpolation="bilinear"),
            "interpolation='bilinear' raises TypeError: Argument interp",
        ),
        (v2.Resize(5, interpolation="cubic"), "interpolation='cubic' raises"),
        (v2.Resize(5, interpolation=6), "filter 6 must be 0 to 5"),
        (v1.CenterCrop((7, 0)), "size 7×0 must be"),
        (v1.CenterCrop((7.5, 8)), "size=7.5 isn't an int"),
        (
            v1.RandomCrop(7, padding=-1, pad_if_needed=True),
            r"-1\) and pad_if_needed cut the image",
        ),
        (v2.RandomCrop(7, (1, -1), padding_mode="edge"), r"padding \(1, -1, 1, -1\) with 'edge' mirrors"),
        (v1.RandomCrop(7, padding=(1, 2, 3)), "padding of 3 values: torchvision takes 1, 2 or 4"),
        (v1.RandomCrop(7, padding=1.5), "padding=1.5 isn't an int"),
        (
            v1.RandomCrop(7, padding=1, fill=(1, 2)),
            r"fill=\(1, 2\) raises ValueError: The number of elements",
        ),
        (v1.RandomCrop(7, padding=1, fill="red"), "fill='red' raises TypeError: Got inappropriate fill arg"),
        (v1.RandomCrop(7, padding=1, padding_mode="wrap"), "padding_mode 'wrap' must be one of"),
        (v1.RandomCrop(7, 1, True, padding_mode="reflect"), "mirrors what is mirrored already"),
        (v1.RandomCrop(7, 1, True, padding_mode="symmetric"), "mirrors what is mirrored already"),
        (v1.CenterCrop((2**21, 5)), r"size 2097152×5 must be 1 to 1048576 pixels each way"),
        (v1.RandomResizedCrop(5, (-0.1, 0.5)), r"scale .* finite, >= 0, low <= high"),
        (v1.RandomResizedCrop(5, ratio=(0.0, 1.0)), r"ratio .* finite, > 0, low <= high"),
        (v1.RandomResizedCrop(5, ratio=(1.0, float("inf"))), "ratio=inf isn't finite"),
        (v1.RandomResizedCrop(5, (float("nan"), 1.0)), "scale=nan isn't finite"),
        (v1.RandomHorizontalFlip(1.5), r"p \(1.5\) must be 0 to 1"),
        (v1.RandomHorizontalFlip(-0.1), r"p \(-0.1\) must be 0 to 1"),
        (v1.RandomAdjustSharpness(-1), r"sharpness_factor \(-1\) must be 0 or more"),
        (v1.RandomSolarize(float("nan")), "threshold=nan isn't finite"),
        (v1.RandomAffine(9, shear=(0, float("inf"))), "shear=inf isn't finite"),
        (v2.RandomAffine(9, center=[float("inf"), 0]), "center=inf isn't finite"),
        (
            v2.ScaleJitter((9, 9), (1.0, 99.0)),
            r"scale_range \(1.0, 99.0\) must be at most \d+: native code makes no larger",
        ),
        (
            v2.RandomZoomOut(side_range=(1.0, 99.0)),
            r"side_range .* must be at most \d+: native code makes no",
        ),
        (v1.RandomHorizontalFlip("0.5"), "p='0.5' isn't a number"),
        (v1.RandomHorizontalFlip(True), "p=True isn't a number"),
    ],
)
def test_refusals(transform: Any, reason: str) -> None:
    with pytest.raises(NoNativeForm, match=reason):
        read(transform)


@BOTH
def test_bounds_the_wrong_way_round_are_refused(api: Any) -> None:
    with pytest.warns(UserWarning, match="Scale and ratio should be of kind"):
        crop = api.RandomResizedCrop(7, scale=(1.0, 0.5))
    with pytest.raises(NoNativeForm, match=r"scale \(1.0, 0.5\) must be"):
        read(crop)
