"""Steps: what they accept, what they say, and torchvision's arithmetic where they do some."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import InterpolationMode, functional

from headrace.transforms import (
    CenterCrop,
    HorizontalFlip,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    ResizeShorter,
    VerticalFlip,
)
from support.images import noise

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (
            RandomResizedCrop(224, 192, SCALE, RATIO, 2),
            "RandomResizedCrop(224×192, scale 0.08–1, ratio 0.75–1.333, bilinear)",
        ),
        (Resize(5, 6, 3), "Resize(5×6, bicubic)"),
        (ResizeShorter(256, None, 1), "Resize(shorter edge 256, lanczos)"),
        (ResizeShorter(256, 300, 0), "Resize(shorter edge 256, longer at most 300, nearest)"),
        (CenterCrop(5, 6), "CenterCrop(5×6)"),
        (RandomCrop(5, 6), "RandomCrop(5×6)"),
        (RandomCrop(5, 6, (1, 2, 3, 4)), "RandomCrop(5×6, padding (1, 2, 3, 4), fill (0, 0, 0))"),
        (RandomCrop(5, 6, None, True, (0, 0, 0), "edge"), "RandomCrop(5×6, pad if needed, edge)"),
        (HorizontalFlip(0.25), "HorizontalFlip(p 0.25)"),
        (VerticalFlip(1), "VerticalFlip(p 1)"),
    ],
)
def test_steps_in_words(step: object, text: str) -> None:
    assert str(step) == text


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 60), st.none() | st.integers(1, 200))
def test_the_shorter_edges_arithmetic_is_torchvisions(h: int, w: int, size: int, more: int | None) -> None:
    limit = None if more is None else size + more
    step = ResizeShorter(size, limit, 0)
    height, width = step.output_size(h, w)
    if min(height, width) == 0 or max(height, width) > 4000:
        return  # too long or too thin for a picture
    resized = functional.resize(Image.new("L", (w, h)), [size], InterpolationMode.NEAREST, limit)
    assert (resized.height, resized.width) == (height, width)


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.none() | st.tuples(*[st.integers(0, 5)] * 4),
    st.booleans(),
)
def test_total_padding_lets_the_window_fit(
    h: int, w: int, padding: tuple[int, int, int, int] | None, if_needed: bool
) -> None:
    left, top, right, bottom = RandomCrop(8, 10, padding, if_needed).total_padding(h, w)
    assert not if_needed or (h + top + bottom >= 8 and w + left + right >= 10)
    if padding is not None and not if_needed:
        assert (left, top, right, bottom) == padding


def test_noise_images_show_any_misplaced_pixel() -> None:
    """The other tests' pictures must show any misplaced pixel."""
    image = noise(8, 9)
    assert image.size == (9, 8)
    assert len({image.getpixel((x, y)) for x in range(9) for y in range(8)}) > 70
