"""Every kind of file that folders hold: torchvision's own pixels, or torchvision's own error."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from jpegs import jpeg, picture
from odd_jpegs import REFUSED
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace

RNG = np.random.default_rng(8)
GOOD = jpeg(RNG, "4:2:0", 90, 70)
STEPS = transforms.Compose([transforms.Resize(40), transforms.CenterCrop((32, 24)), transforms.ToTensor()])


def saved(format_: str, mode: str = "RGB", width: int = 80, height: int = 60, **options: object) -> bytes:
    file = io.BytesIO()
    picture(np.random.default_rng(1), width, height).convert(mode).save(file, format_, **options)
    return file.getvalue()


def rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved("JPEG", exif=exif)


def sixteen_bits() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(80 * 60, dtype=np.uint16).reshape(60, 80) * 13).save(file, "PNG")
    return file.getvalue()


def exotic_sampling() -> bytes:
    """4:1:1, by rewriting the factors of a picture whose blocks fit both."""
    data = bytearray(saved("JPEG", subsampling=0, width=8, height=8, quality=90))
    at = data.index(b"\xff\xc0")
    data[at + 11] = 0x41
    return bytes(data)


FILES: dict[str, Callable[[], bytes]] = {
    "progressive": lambda: saved("JPEG", progressive=True),
    "gray": lambda: saved("JPEG", "L"),
    "cmyk": lambda: saved("JPEG", "CMYK"),
    "rgb inside": lambda: saved("JPEG", keep_rgb=True),
    "png": lambda: saved("PNG"),
    "png with alpha": lambda: saved("PNG", "RGBA"),
    "png with a palette": lambda: saved("PNG", "P"),
    "png of 16 bits": sixteen_bits,
    "png of 1 bit": lambda: saved("PNG", "1"),
    "webp": lambda: saved("WEBP"),
    "gif": lambda: saved("GIF"),
    "bmp": lambda: saved("BMP"),
    "tiff": lambda: saved("TIFF"),
    "rotated by exif": rotated,
    "1×1": lambda: saved("JPEG", width=1, height=1),
    "very wide": lambda: saved("JPEG", width=3000, height=2),
    "very tall": lambda: saved("JPEG", width=1, height=2000),
    "garbage after the end": lambda: GOOD + b"and more",
    "fill bytes before a marker": lambda: GOOD[:2] + b"\xff\xff\xff" + GOOD[2:],
    "two pictures in one file": lambda: GOOD + GOOD,
    "without its end marker": lambda: GOOD[:-2],
    "empty": lambda: b"",
    "text": lambda: b"not a picture",
    "only the start": lambda: GOOD[:20],
    "cut in its header": lambda: GOOD[:200],
    "cut in its data": lambda: GOOD[: len(GOOD) * 2 // 3],
    "zeros from the middle on": lambda: GOOD[: len(GOOD) // 2] + bytes(len(GOOD) // 2),
    "4:1:1 by another's blocks": exotic_sampling,
}


def folder_of(root: Path, data: bytes) -> ImageFolder:
    (root / "class").mkdir(parents=True)
    (root / "class" / "a.jpeg").write_bytes(data)
    for i in range(9):  # enough JPEGs around it for a native plan
        (root / "class" / f"b{i}.jpg").write_bytes(GOOD)
    return ImageFolder(str(root), STEPS)


def loaded(dataset: ImageFolder) -> tuple[torch.Tensor | None, Exception | None]:
    """What torchvision makes of the first sample, or its error."""
    try:
        return dataset[0][0], None
    except Exception as error:
        return None, error


@pytest.mark.parametrize("name", FILES)
def test_the_same_pixels_or_the_same_error(tmp_path: Path, name: str) -> None:
    check(tmp_path, FILES[name]())


@pytest.mark.parametrize("name", REFUSED)
def test_what_our_decoder_refuses_is_still_what_torchvision_makes_of_it(tmp_path: Path, name: str) -> None:
    check(tmp_path, REFUSED[name]())


def check(root: Path, data: bytes) -> None:
    dataset = folder_of(root, data)
    loader = headrace.DataLoader(dataset, batch_size=1, num_workers=1)
    assert loader.plan().native is not None
    expected, problem = loaded(dataset)
    if expected is not None:
        assert torch.equal(next(iter(loader))[0][0], expected)
        return
    with pytest.raises(headrace.SampleError) as caught:
        next(iter(loader))
    assert type(caught.value.__cause__) is type(problem)
    assert str(caught.value.__cause__) == str(problem)


def test_pillows_limit_of_pixels_is_pillows_to_enforce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = folder_of(tmp_path, GOOD)
    loader = headrace.DataLoader(dataset, batch_size=1, num_workers=1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 70 // 2 - 1)
    with pytest.raises(headrace.SampleError, match="DecompressionBombError"):
        next(iter(loader))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 70 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        images, _ = next(iter(loader))
    with pytest.warns(Image.DecompressionBombWarning):
        assert torch.equal(images[0], dataset[0][0])


def test_a_folder_that_became_unreadable_is_named(tmp_path: Path) -> None:
    dataset = folder_of(tmp_path, GOOD)
    (tmp_path / "class" / "a.jpeg").unlink()
    (tmp_path / "class" / "a.jpeg").mkdir()
    with pytest.raises(headrace.SampleError, match="IsADirectoryError"):
        next(iter(headrace.DataLoader(dataset, batch_size=1)))
