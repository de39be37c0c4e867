"""Every kind of file that folders hold: torchvision's own pixels, or torchvision's own error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
import headrace.testing
from headrace._native.decoders import FORMATS, native_formats
from support import odd_jpegs, pngs
from support.deferred_images import needs_native
from support.equal import same
from support.images import check_first_sample, decoded_as_png
from support.jpegs import jpeg
from support.odd_files import GOOD, ODD_FILES, saved

STEPS = transforms.Compose([transforms.Resize(40), transforms.CenterCrop((32, 24)), transforms.ToTensor()])


def folder_of(root: Path, data: bytes) -> ImageFolder:
    (root / "class").mkdir(parents=True)
    (root / "class" / "a.jpeg").write_bytes(data)
    for i in range(9):  # enough JPEGs around it for a native plan
        (root / "class" / f"b{i}.jpg").write_bytes(GOOD)
    return ImageFolder(str(root), STEPS)


@pytest.mark.parametrize("name", ODD_FILES)
def test_the_same_pixels_or_the_same_error(tmp_path: Path, name: str) -> None:
    check(tmp_path, ODD_FILES[name]())


@pytest.mark.parametrize("name", odd_jpegs.REFUSED)
def test_what_our_decoder_refuses_is_still_what_torchvision_makes_of_it(tmp_path: Path, name: str) -> None:
    check(tmp_path, odd_jpegs.REFUSED[name]())


PNGS = pngs.TAKEN | pngs.REFUSED | pngs.DECEPTIVE


@pytest.mark.parametrize("name", PNGS)
def test_odd_png_files_are_what_torchvision_makes_of_them(tmp_path: Path, name: str) -> None:
    check(tmp_path, PNGS[name]())


def mixed_folder(root: Path) -> dict[str, int]:
    """Files of all formats in three classes, some by another format's name; how many there are of each."""
    rng = np.random.default_rng(1)
    files = [("JPEG", jpeg(rng, kind, 70, 60)) for kind in ("4:2:0", "4:4:4", "progressive")]
    for interlaced, format in ((False, "PNG"), (True, "other")):  # Pillow decodes interlaced ones
        files += [(format, pngs.png(rng, 50, 61, *kind, interlaced=interlaced)) for kind in pngs.KINDS]
    files += [
        ("WEBP", saved("WEBP", mode, 64, 48, **kind)) for mode in ("RGB", "RGBA") for kind in WEBP_KINDS
    ]
    files += [("other", saved(name, "L")) for name in ("GIF", "BMP", "TIFF")]
    names = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "other": "bmp"}
    for i, (format, data) in enumerate(files):
        folder = root / f"class{i % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        # The name of every tenth file is another format's: bytes decide.
        extension = "bmp" if i % 10 == 9 else names[format]
        (folder / f"{i:03}.{extension}").write_bytes(data)
    return {name: sum(format == name for format, _ in files) for name in names}


WEBP_KINDS: list[dict[str, Any]] = [{"quality": 70}, {"lossless": True}]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_folder_of_mixed_formats_equals_torchs_loader(tmp_path: Path, workers: int) -> None:
    counts = mixed_folder(tmp_path)
    dataset = ImageFolder(str(tmp_path), STEPS)
    loader = headrace.DataLoader(dataset, batch_size=7, num_workers=workers)
    assert loader.plan().native is not None
    expected = list(TorchDataLoader(dataset, batch_size=7, num_workers=workers))
    assert same(list(loader), expected)
    decoded = loader.stats().decoded_by
    by_format = {format: sum(decoded.get(name, 0) for name in FORMATS[format]) for format in native_formats()}
    assert by_format == {format: counts[format] for format in native_formats()}
    assert decoded["pillow"] == len(dataset) - sum(by_format.values())


def gray(path: str) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("L")


def test_gray_images_of_mixed_formats_equal_torchs_loader(tmp_path: Path) -> None:
    needs_native("PNG")
    mixed_folder(tmp_path)
    dataset = ImageFolder(str(tmp_path), STEPS, loader=gray)
    loader = headrace.DataLoader(dataset, batch_size=7, num_workers=1)
    assert loader.plan().native is not None
    assert same(list(loader), list(TorchDataLoader(dataset, batch_size=7)))
    assert decoded_as_png(loader) > 0


def upright(image: Image.Image) -> Image.Image:
    return ImageOps.exif_transpose(image)


def test_upright_images_of_mixed_formats_equal_torchs_loader(tmp_path: Path) -> None:
    mixed_folder(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = 6
    for format in ("PNG", "WEBP", "JPEG"):
        data = saved(format, width=50, height=70, exif=exif)
        (tmp_path / "class0" / f"rotated.{format.lower()}").write_bytes(data)
    dataset = ImageFolder(str(tmp_path), transforms.Compose([transforms.Lambda(upright), *STEPS.transforms]))
    loader = headrace.DataLoader(dataset, batch_size=7, num_workers=1)
    assert same(list(loader), list(TorchDataLoader(dataset, batch_size=7)))


class Opened(Dataset[Any]):
    """Files that the dataset opens itself."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.paths = sorted(path for path in folder.rglob("*.*") if path.is_file())
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as image:
            tensor: torch.Tensor = self.transform(image.convert("RGB"))
        return tensor


@pytest.mark.parametrize("deferred", [True, False])
def test_a_dataset_that_opens_mixed_formats_equals_torchs_loader(tmp_path: Path, deferred: Any) -> None:
    mixed_folder(tmp_path)
    steps = [transforms.RandomResizedCrop((33, 40)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = Opened(tmp_path, transforms.Compose(steps))
    torch.manual_seed(4)
    ours = list(headrace.DataLoader(dataset, batch_size=7, num_workers=2, deferred=deferred))
    torch.manual_seed(4)
    assert same(ours, list(TorchDataLoader(dataset, batch_size=7, num_workers=2)))


def test_random_crops_of_mixed_formats_are_those_that_torchvision_makes(tmp_path: Path) -> None:
    mixed_folder(tmp_path)
    steps = [transforms.RandomResizedCrop((33, 40)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    dataset = ImageFolder(str(tmp_path), transforms.Compose(steps))
    loader = headrace.DataLoader(dataset, batch_size=5, seed=3)
    images = torch.cat([images for images, _ in loader])
    for i, image in enumerate(images):
        assert torch.equal(image, headrace.testing.replay(loader, i)), dataset.samples[i]


def check(root: Path, data: bytes) -> None:
    check_first_sample(folder_of(root, data))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_pillows_limit_of_pixels_is_pillows_to_enforce(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = folder_of(tmp_path, saved(format, width=90, height=70))
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
