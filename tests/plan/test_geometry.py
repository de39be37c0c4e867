"""The legal sequences of steps, what is left out as having no effect, and the sizes on the way."""

from __future__ import annotations

import pytest

from headrace.plan import geometry
from headrace.plan.geometry import Extent, Placed, check_geometry
from headrace.plan.logical import (
    CenterCrop,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ResizeShorter,
    Step,
    VerticalFlip,
)

RRC = RandomResizedCrop(224, 192, (0.08, 1.0), (3 / 4, 4 / 3), 2)
FLIP, FLOP = HorizontalFlip(0.5), VerticalFlip(0.5)
SHORTER = ResizeShorter(256, None, 2)


def problems(*steps: Step) -> list[str]:
    return [verdict.problem for verdict in check_geometry([Placed(step) for step in steps])]


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
    ],
)
def test_legal(steps: list[Step]) -> None:
    assert problems(*steps) == [""] * len(steps)


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ([SHORTER, RRC], geometry.SECOND_RESIZE),
        ([Resize(32, 32, 2), Resize(64, 64, 2)], geometry.SECOND_RESIZE),
        ([RandomCrop(100, 100), CenterCrop(120, 80)], geometry.SECOND_PADDING),
        ([RandomCrop(100, 100), FLIP, RandomCrop(90, 90, (1, 1, 1, 1))], geometry.SECOND_PADDING),
        ([SHORTER, CenterCrop(224, 224), RandomCrop(224, 224, (8, 8, 8, 8))], geometry.SECOND_PADDING),
        ([RRC, RandomCrop(225, 192)], "cuts 225×192 from 224×192, for which torchvision raises an error"),
        (
            [RRC, RandomCrop(233, 192, (4, 4, 4, 4))],
            "cuts 233×192 from 232×200, for which torchvision raises an error",
        ),
    ],
)
def test_illegal(steps: list[Step], problem: str) -> None:
    assert problems(*steps) == [""] * (len(steps) - 1) + [problem]


def last(*placed: Placed) -> geometry.Verdict:
    return check_geometry(placed)[-1]


def test_a_resize_to_the_size_that_is_there_has_no_effect() -> None:
    for size in (Resize(224, 192, 3), ResizeShorter(192, None, 0)):
        for placed in (Placed(size), Placed(size, "resample")):
            verdict = last(Placed(RRC), placed)
            assert (verdict.step, verdict.note, verdict.problem) == (None, geometry.NO_EFFECT, "")
    assert last(Placed(Resize(224, 192, 3)), Placed(RRC)).problem == geometry.SECOND_RESIZE


def test_a_crop_of_everything_has_no_effect() -> None:
    assert last(Placed(RRC), Placed(CenterCrop(224, 192))).step is None
    assert last(Placed(RRC), Placed(RandomCrop(224, 192))).step is None
    # ... and so is no crop that would forbid a padding one.
    steps = [RRC, CenterCrop(224, 192), RandomCrop(224, 192, (4, 4, 4, 4))]
    assert problems(*steps) == ["", "", ""]


def test_padding_that_is_never_needed_is_left_out() -> None:
    assert last(Placed(SHORTER), Placed(RandomCrop(256, 200, None, True))).step == RandomCrop(256, 200)
    padded = RandomCrop(264, 200, (4, 4, 4, 4), True)
    assert last(Placed(SHORTER), Placed(padded)).step == RandomCrop(264, 200, (4, 4, 4, 4), False)
    assert last(Placed(SHORTER), Placed(RandomCrop(257, 200, None, True))).step == RandomCrop(
        257, 200, None, True
    )
    assert last(Placed(RRC), Placed(RandomCrop(9, 9, (0, 0, 0, 0)))).step == RandomCrop(9, 9)
    # A crop in between leaves the size known: nothing is padded, so nothing is wrong.
    assert (
        problems(SHORTER, RandomCrop(240, 240), CenterCrop(240, 200), RandomCrop(9, 9, None, True))
        == [""] * 4
    )


def test_on_tensors_only_what_gives_the_same_pixels() -> None:
    known = [Placed(RRC)]
    assert last(*known, Placed(FLIP, "same")).problem == ""
    assert last(*known, Placed(CenterCrop(100, 100), "window")).problem == ""
    assert last(*known, Placed(RandomCrop(100, 100), "window")).problem == ""
    assert last(Placed(RandomCrop(100, 100), "window")).problem == ""
    assert last(Placed(CenterCrop(100, 100), "window")).problem == geometry.TENSOR_PADDING
    assert last(*known, Placed(CenterCrop(100, 300), "window")).problem == geometry.TENSOR_PADDING
    assert last(*known, Placed(RandomCrop(9, 9, (1, 1, 1, 1)), "window")).problem == geometry.TENSOR_PADDING
    assert last(*known, Placed(RandomCrop(9, 9, (0, 0, 0, 0)), "window")).problem == geometry.TENSOR_PADDING
    assert last(Placed(RRC, "resample")).problem == geometry.TENSOR_RESIZE
    assert last(Placed(Resize(5, 5, 2), "resample")).problem == geometry.TENSOR_RESIZE


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
def test_sizes(steps: list[Step], extent: Extent) -> None:
    assert check_geometry([Placed(step) for step in steps])[-1].extent == extent


def test_a_picture_that_shrinks_to_nothing() -> None:
    thin = [CenterCrop(1, 100), ResizeShorter(1, 50, 2), CenterCrop(5, 5), ResizeShorter(3, None, 2)]
    assert problems(*thin)[1] == geometry.NOTHING_LEFT


def test_nothing_to_check() -> None:
    assert check_geometry([]) == ()
