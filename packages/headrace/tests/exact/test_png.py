"""PNG files are decoded to Pillow's pixels, for any kind of file and any rectangle, or left to Pillow."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from headrace._native import ffi
from headrace._native.decoders import native_formats
from headrace.errors import NativeError
from support.images import Rectangle, by_pillow, check_rectangles, decoded_as_png, rectangle
from support.pngs import KINDS, REFUSED, TAKEN, png

pytestmark = pytest.mark.skipif("PNG" not in native_formats(), reason="built without libdeflate")

FILES_OF_A_KIND = 40


def decoded(data: bytes, rect: Rectangle) -> npt.NDArray[np.uint8]:
    return ffi.image_decode(data, "libdeflate", rect)


def check(data: bytes, *rectangles: Rectangle) -> None:
    check_rectangles("libdeflate", data, *rectangles)


@pytest.mark.parametrize(("bits", "color"), KINDS)
def test_crops_of_every_kind_equal_pillows(bits: int, color: int) -> None:
    rng = np.random.default_rng([bits, color])
    for i in range(FILES_OF_A_KIND):
        limit = 3 if i < 10 else 60
        width, height = (int(n) for n in rng.integers(1, limit + 1, 2))
        data = png(rng, width, height, bits, color)
        check(data, *(rectangle(rng, width, height) for _ in range(4)))
        assert ffi.image_decodes(data)


@pytest.mark.parametrize(("bits", "color"), KINDS)
def test_interlaced_files_are_left_to_pillow_but_their_size_is_known(bits: int, color: int) -> None:
    data = png(np.random.default_rng(bits), 20, 11, bits, color, interlaced=True)
    assert ffi.image_size(data) == (20, 11)
    assert not ffi.image_decodes(data)
    with pytest.raises(NativeError):
        decoded(data, (0, 0, 1, 1))


@given(
    kind=st.sampled_from(KINDS),
    size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    entries=st.integers(1, 256),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150)
def test_any_file_gives_pillows_pixels(
    kind: tuple[int, int], size: tuple[int, int], entries: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    data = png(rng, *size, *kind, entries=entries)
    check(data, rectangle(rng, *size))


def test_a_large_file_of_pillows_own_making() -> None:
    rng = np.random.default_rng(3)
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        bits = rng.integers(0, 256, (700, 900, 3), np.uint8)
        image = Image.fromarray(bits)
        image = (
            Image.fromarray(bits[:, :, 0].astype(np.uint16) * 7) if mode == "I;16" else image.convert(mode)
        )
        file = io.BytesIO()
        image.save(file, "PNG")
        check(file.getvalue(), (0, 0, 900, 3), (899, 699, 1, 1), (100, 50, 640, 480))


@pytest.mark.parametrize("name", TAKEN)
def test_what_changes_no_pixel_is_decoded(name: str) -> None:
    data = TAKEN[name]()
    check(data, (1, 2, 3, 4))
    assert ffi.image_decodes(data)


@pytest.mark.parametrize("name", REFUSED)
def test_what_pillow_must_judge_is_refused(name: str) -> None:
    data = REFUSED[name]()
    assert not ffi.image_decodes(data)
    with pytest.raises(NativeError):
        decoded(data, (0, 0, 1, 1))


def test_a_file_that_was_cut_short_is_refused_wherever_the_crop_lies() -> None:
    data = png(np.random.default_rng(4), 20, 20)
    for length in range(len(data)):
        with pytest.raises(NativeError):
            decoded(data[:length], (0, 0, 1, 1))


def test_damage_gives_pillows_pixels_or_is_refused() -> None:
    """Pillow reads image data whatever their checksums: what is decoded must be what it makes of them."""
    rng = random.Random(5)
    numbers = np.random.default_rng(5)
    accepted = 0
    for _ in range(400):
        bits, color = rng.choice(KINDS)
        data = bytearray(png(numbers, 30, 30, bits, color, interlaced=rng.random() < 0.3))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(8, len(data))] = rng.randrange(256)
        for rect in ((0, 0, 30, 30), (3, 4, 20, 5)):
            try:
                pixels = decoded(bytes(data), rect)
            except NativeError:
                continue
            x, y, w, h = rect
            assert np.array_equal(pixels, by_pillow(bytes(data))[y : y + h, x : x + w])
            accepted += 1
    assert accepted < 400


def test_a_decoder_remembers_nothing_of_earlier_files(tmp_path: Path) -> None:
    """One decoder for all of them, as in a loader: kinds, sizes, palettes and refused files in turn."""
    import torch
    from torchvision import transforms

    import headrace

    rng = np.random.default_rng(6)
    kinds = [KINDS[i] for i in rng.integers(0, len(KINDS), 120)]
    paths, interlaced = [], rng.integers(2, size=len(kinds))
    for i, (bits, color) in enumerate(kinds):
        path = tmp_path / f"{i}.png"
        width, height = (int(n) for n in rng.integers(9, 60, 2))
        data = png(rng, width, height, bits, color, interlaced=bool(interlaced[i]))
        path.write_bytes(data[: len(data) // 2] if i % 10 == 9 else data)
        paths.append(path)
    steps = transforms.Compose([transforms.CenterCrop((8, 7)), transforms.PILToTensor()])
    dataset = headrace.ImageDataset(paths, [0] * len(paths), steps)
    loader = headrace.DataLoader(dataset, batch_size=8, num_workers=1, on_error="skip")
    images = torch.cat([images for images, _ in loader])
    good = [i for i in range(len(paths)) if i % 10 != 9]
    assert torch.equal(images, torch.stack([dataset[i][0] for i in good]))  # type: ignore[attr-defined]
    assert decoded_as_png(loader) == sum(not interlaced[i] for i in good)  # Pillow decodes the others


def test_pillow_warns_of_what_it_warns_of(tmp_path: Path) -> None:
    """Transparent palettes: a native loader gives the warning and the pixels."""
    import torch
    from torchvision import transforms

    import headrace

    path = tmp_path / "a.png"
    path.write_bytes(REFUSED["transparent entries of a palette"]())
    dataset = headrace.ImageDataset([path], [0], transforms.PILToTensor())
    dataset.transform = transforms.Compose([transforms.CenterCrop(8), transforms.PILToTensor()])
    loader = headrace.DataLoader(dataset, batch_size=1, num_workers=1)
    with pytest.warns(UserWarning, match="Palette images with Transparency"):
        images, _ = next(iter(loader))
    with pytest.warns(UserWarning, match="Palette images with Transparency"):
        assert torch.equal(images[0], dataset[0][0])
