"""Ops in their places: what is left out as having no effect, what is refused, and the sizes on the way."""

from __future__ import annotations

import pytest

from headrace.transforms import (
    CenterCrop,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ResizeShorter,
    VerticalFlip,
)
from headrace.transforms.crops import TENSOR_PADDING
from headrace.transforms.op import NO_EFFECT, UNKNOWN, Extent, ImageOp, Settled
from headrace.transforms.resize import NOTHING_LEFT, TENSOR_RESIZE

RRC = RandomResizedCrop(224, 192, (0.08, 1.0), (3 / 4, 4 / 3), 2)
FLIP, FLOP = HorizontalFlip(0.5), VerticalFlip(0.5)
SHORTER = ResizeShorter(256, None, 2)


def settle(*steps: ImageOp, on_tensor: bool = False) -> list[Settled]:
    """Of each step in its place; `on_tensor`: the last one comes after the conversion."""
    settled, extent = [], UNKNOWN
    for i, step in enumerate(steps):
        settled.append(step.settle(extent, on_tensor=on_tensor and i == len(steps) - 1))
        extent = settled[-1].extent
    return settled


def problems(*steps: ImageOp) -> list[str]:
    return [each.problem for each in settle(*steps)]


@pytest.mark.parametrize(
    "steps",
    [
        [RRC, FLIP],
        [FLIP, FLOP, RRC],
        [SHORTER, CenterCrop(224, 224)],
        [SHORTER, CenterCrop(300, 300), FLIP],
        [CenterCrop(300, 300), RRC],
        [RandomCrop(300, 300), CenterCrop(280, 290), RRC, RandomCrop(200, 190), CenterCrop(150, 150)],
        [RandomCrop(32, 32, (4, 4, 4, 4)), FLIP],
        [FLIP, RandomCrop(32, 32, (4, 4, 4, 4)), CenterCrop(28, 28)],
        [RRC, RandomCrop(224, 192, (4, 4, 4, 4))],
        [Resize(32, 40, 2), FLIP, RandomCrop(32, 40, None, True)],
        [RRC, RandomCrop(230, 192, (0, 2, 0, 4))],
        [RRC, RandomCrop(224, 198, (2, 0, 4, 0))],
        # Done in several passes over pixels.
        [SHORTER, RRC],
        [Resize(32, 32, 2), Resize(64, 64, 2)],
        [RandomCrop(100, 100), CenterCrop(120, 80)],
        [RandomCrop(100, 100), FLIP, RandomCrop(90, 90, (1, 1, 1, 1))],
        [SHORTER, CenterCrop(224, 224), RandomCrop(224, 224, (8, 8, 8, 8))],
    ],
)
def test_accepted_steps_have_no_problem(steps: list[ImageOp]) -> None:
    assert problems(*steps) == [""] * len(steps)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([RRC, RandomCrop(225, 192)], "cuts 225×192 from 224×192, for which torchvision raises an error"),
        (
            [RRC, RandomCrop(233, 192, (4, 4, 4, 4))],
            "cuts 233×192 from 232×200, for which torchvision raises an error",
        ),
    ],
)
def test_the_last_step_is_refused_with_its_reason(steps: list[ImageOp], problem: str) -> None:
    assert problems(*steps) == [""] * (len(steps) - 1) + [problem]


def last(*steps: ImageOp, on_tensor: bool = False) -> Settled:
    return settle(*steps, on_tensor=on_tensor)[-1]


def test_a_resize_to_the_size_that_is_there_has_no_effect() -> None:
    for size in (Resize(224, 192, 3), ResizeShorter(192, None, 0)):
        for on_tensor in (False, True):
            settled = last(RRC, size, on_tensor=on_tensor)
            assert (settled.op, settled.note, settled.problem) == (None, NO_EFFECT, "")
    # A RandomResizedCrop to the same size still cuts a box.
    assert last(Resize(224, 192, 3), RRC).op == RRC


def test_a_crop_of_everything_has_no_effect() -> None:
    assert last(RRC, CenterCrop(224, 192)).op is None
    assert last(RRC, RandomCrop(224, 192)).op is None
    # ... and so is no crop that would forbid a padding one.
    steps = [RRC, CenterCrop(224, 192), RandomCrop(224, 192, (4, 4, 4, 4))]
    assert problems(*steps) == ["", "", ""]


def test_padding_that_is_never_needed_is_left_out() -> None:
    assert last(SHORTER, RandomCrop(256, 200, None, True)).op == RandomCrop(256, 200)
    padded = RandomCrop(264, 200, (4, 4, 4, 4), True)
    assert last(SHORTER, padded).op == RandomCrop(264, 200, (4, 4, 4, 4), False)
    assert last(SHORTER, RandomCrop(257, 200, None, True)).op == RandomCrop(257, 200, None, True)
    assert last(RRC, RandomCrop(9, 9, (0, 0, 0, 0))).op == RandomCrop(9, 9)
    # A crop in between leaves the size known: nothing is padded, so nothing is wrong.
    assert (
        problems(SHORTER, RandomCrop(240, 240), CenterCrop(240, 200), RandomCrop(9, 9, None, True))
        == [""] * 4
    )


def test_on_tensors_only_what_gives_the_same_pixels() -> None:
    assert last(RRC, FLIP, on_tensor=True).problem == ""
    assert last(RRC, CenterCrop(100, 100), on_tensor=True).problem == ""
    assert last(RRC, RandomCrop(100, 100), on_tensor=True).problem == ""
    assert last(RandomCrop(100, 100), on_tensor=True).problem == ""
    assert last(CenterCrop(100, 100), on_tensor=True).problem == TENSOR_PADDING
    assert last(RRC, CenterCrop(100, 300), on_tensor=True).problem == TENSOR_PADDING
    assert last(RRC, RandomCrop(9, 9, (1, 1, 1, 1)), on_tensor=True).problem == TENSOR_PADDING
    assert last(RRC, RandomCrop(9, 9, (0, 0, 0, 0)), on_tensor=True).problem == TENSOR_PADDING
    assert last(RRC, on_tensor=True).problem == TENSOR_RESIZE
    assert last(Resize(5, 5, 2), on_tensor=True).problem == TENSOR_RESIZE


@pytest.mark.parametrize(
    ("steps", "extent"),
    [
        ([RRC], Extent(224, 192, exact=True)),
        ([FLIP], Extent(1, 1, exact=False)),
        ([SHORTER, FLIP], Extent(256, 256, exact=False)),
        ([ResizeShorter(256, 300, 2)], Extent(1, 1, exact=False)),
        ([CenterCrop(100, 50), ResizeShorter(20, None, 2)], Extent(40, 20, exact=True)),
        ([CenterCrop(100, 50), ResizeShorter(20, 30, 2)], Extent(30, 15, exact=True)),
        ([SHORTER, CenterCrop(7, 300)], Extent(7, 300, exact=True)),
    ],
)
def test_extents_after_each_list_of_steps(steps: list[ImageOp], extent: Extent) -> None:
    assert last(*steps).extent == extent


def test_a_picture_that_shrinks_to_nothing() -> None:
    thin = [CenterCrop(1, 100), ResizeShorter(1, 50, 2), CenterCrop(5, 5), ResizeShorter(3, None, 2)]
    assert problems(*thin)[1] == NOTHING_LEFT
